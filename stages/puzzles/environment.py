"""What a puzzle family offers, and the families there are.

A family is a folder beside this file that has an object with this interface; `_FAMILIES` names it.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from artifacts.errors import BadInputError
from stages.puzzles.puzzle import Checked, DeductionCounts, Graded, Grader, Puzzle


class Environment(Protocol):
    """One puzzle family: generate, read, list the possible answers, grade, and write the right answer.

    Every family asks lettered questions, so `stages.puzzles.grading` and `answers` serve all of them.
    """

    @property
    def name(self) -> str:
        """The name that puzzles carry in `Puzzle.environment`."""
        ...

    @property
    def tiers(self) -> dict[str, Any]:
        """Named difficulties, from the easiest: configs that `generate` takes."""
        ...

    def generate(self, config: Any, seed: int) -> Puzzle:
        """A puzzle of that difficulty with exactly one solution; the same for (config, seed) on every machine."""
        ...

    def answer_values(self, puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
        """For each letter, the values that the puzzle's own text allows as its answer."""
        ...

    def read(self, puzzle_id: str, num_clues: int, prompt: str, solution: dict[str, str]) -> Puzzle:
        """A puzzle from its text and solution.

        Raises:
            BadInputError: The text is not of this family, or the solution does not fit it.
        """
        ...

    def read_published(self, path: Path | str) -> list[Puzzle]:
        """The puzzles of a JSON file in the published format.

        Raises:
            BadInputError: See `stages.puzzles.published.read_puzzles`.
        """
        ...

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """The grade of a completion; any text at all."""
        ...

    def write_answer(self, puzzle: Puzzle) -> str:
        """The final answers as the prompt asks for them."""
        ...


class Deductive(Environment, Protocol):
    """A family that can also solve its puzzles from the text and prove what is said about them."""

    def check(self, puzzle: Puzzle) -> Checked:
        """Solves the puzzle from its prompt only, and compares."""
        ...

    def write_derivation(self, puzzle: Puzzle) -> str:
        """A short derivation, proved step by step, and after it the final answers.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read.
        """
        ...

    def count_deductions(self, text: str, puzzle: Puzzle) -> DeductionCounts:
        """What a completion asserts about the puzzle, each statement proved or refuted.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read.
        """
        ...


_FAMILIES = {
    "temporal_clue": "stages.puzzles.temporal_clue.family:TEMPORAL_CLUE",
    "zebra": "stages.puzzles.zebra.family:ZEBRA",
}


def names() -> tuple[str, ...]:
    """The names of all families."""
    return tuple(_FAMILIES)


def get(name: str) -> Environment:
    """The family called `name`.

    Raises:
        BadInputError: There is none of that name.
    """
    if name not in _FAMILIES:
        raise BadInputError("environment", repr(name), f"one of {', '.join(_FAMILIES)}")
    module, _, attribute = _FAMILIES[name].partition(":")
    return cast(Environment, getattr(import_module(module), attribute))


def get_deductive(name: str) -> Deductive:
    """The family called `name`, for proofs about its puzzles.

    Raises:
        BadInputError: There is none of that name, or it proves nothing.
    """
    family = get(name)
    if not hasattr(family, "count_deductions"):
        raise BadInputError(
            "environment", f"{name!r} proves no deductions", "a family that does, such as temporal_clue"
        )
    return cast(Deductive, family)
