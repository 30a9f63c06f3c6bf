"""Soundness of the statements in answers: mean numbers by verdict, and examples with the clues that refute them."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from stages.environments import environment
from stages.environments.capabilities import AnswersCalls, Proves
from stages.environments.puzzle import Puzzle
from stages.environments.tables import DEDUCTION_COLUMNS, assertions, puzzles_by_id

VERDICTS = DEDUCTION_COLUMNS[1:]
"""Kinds of statements: proved, restated, open, contradicted."""
EXAMPLES = 3
"""Number of refuted statements that are shown for each model."""


@dataclass(frozen=True)
class Refuted:
    """A statement that the clues contradict.

    Attributes:
        prompt_id: Id of its puzzle.
        text: The statement, in the words of the answer.
        numbers: Numbers (from 1) of clues that refute it, all of them needed; empty if the rules alone refute it.
        clues: The words of these clues; empty if the environment cannot list its clues.
    """

    prompt_id: str
    text: str
    numbers: tuple[int, ...]
    clues: tuple[str, ...]

    @property
    def words(self) -> str:
        """The clues in one text."""
        if not self.numbers:
            return "the rules alone"
        if not self.clues:
            return ", ".join(f"clue {number}" for number in self.numbers)
        return "; ".join(f"{number}. {clue}" for number, clue in zip(self.numbers, self.clues, strict=True))


def refuted_statements(results: pl.DataFrame, puzzles: pl.DataFrame, count: int) -> list[Refuted]:
    """Returns the first contradicted statements of answers, at most one for each puzzle.

    Puzzles with few clues come first, because a reader can check them.

    Args:
        results: Rows of the `results` schema.
        puzzles: Rows of the `puzzles` schema, with the puzzles of all results.
        count: Largest number of statements.
    """
    wrong = results.filter(pl.col("contradicted") > 0).unique("prompt_id", keep="first", maintain_order=True)
    clues = puzzles.select("prompt_id", "num_clues")
    rows = wrong.join(clues, on="prompt_id", maintain_order="left").sort("num_clues", maintain_order=True).head(count)
    known = puzzles_by_id(puzzles.filter(pl.col("prompt_id").is_in(rows["prompt_id"].to_list())))
    found = (_first_refuted(text, known[prompt_id]) for prompt_id, text in rows.select("prompt_id", "text").iter_rows())
    return [item for item in found if item is not None]


def mean_statements(results: pl.DataFrame) -> dict[str, float] | None:
    """Returns the mean number of statements in an answer by verdict; None if there are none, or none can be proved.

    Args:
        results: Rows of the `results` schema.
    """
    rows = results.drop_nulls("statements")
    if rows.is_empty() or not rows["statements"].sum():
        return None
    means: Mapping[str, float] = rows.select(pl.col(VERDICTS).mean()).row(0, named=True)
    return dict(means)


def _first_refuted(text: str, puzzle: Puzzle) -> Refuted | None:
    solver = environment.get(puzzle.environment)
    if not isinstance(solver, Proves):
        return None
    statements = assertions(text, puzzle) or []
    first = next((item for item in statements if item.verdict == "contradicted"), None)
    numbers = None if first is None else solver.premises(first.text, puzzle)
    if first is None or numbers is None:
        return None
    clues = solver.asked(puzzle) if isinstance(solver, AnswersCalls) else []
    words = tuple(clues[number - 1] for number in numbers) if clues else ()
    return Refuted(puzzle.prompt_id, " ".join(first.text.split()), numbers, words)
