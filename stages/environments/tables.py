"""Converts tables of puzzles to `Puzzle` objects and back, and grades to columns."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import get_args

import polars as pl

from artifacts.errors import BadInputError, IntegrityError
from artifacts.schemas import PUZZLES, as_table
from stages.environments import environment
from stages.environments.capabilities import GradesMany, NamesThings, Proves, WritesAnswers, WritesDerivations, needs
from stages.environments.puzzle import Asserted, DeductionCounts, Graded, Grader, Puzzle, Style

DEDUCTION_COLUMNS = tuple(field.name for field in fields(DeductionCounts))


def to_table(puzzles: Sequence[Puzzle]) -> pl.DataFrame:
    """Returns puzzles as a table of the `puzzles` schema."""
    rows = [
        {
            "puzzle_id": puzzle.puzzle_id,
            "environment": puzzle.environment,
            "prompt": puzzle.prompt,
            "solution": json.dumps(puzzle.solution),
            "num_clues": puzzle.num_clues,
            "difficulty": json.dumps(puzzle.difficulty),
            "seed": puzzle.seed,
            "digest": puzzle.digest,
        }
        for puzzle in puzzles
    ]
    return as_table(rows, PUZZLES)


def from_table(table: pl.DataFrame) -> list[Puzzle]:
    """Returns the puzzles in a table of the `puzzles` schema."""
    return [
        Puzzle(**{**row, "solution": json.loads(row["solution"]), "difficulty": json.loads(row["difficulty"])})
        for row in table.iter_rows(named=True)
    ]


def puzzles_by_id(table: pl.DataFrame) -> dict[str, Puzzle]:
    """Returns the puzzles in a table by their id."""
    return {puzzle.puzzle_id: puzzle for puzzle in from_table(table)}


def graded_texts(answered: Iterable[tuple[str, str]], known: Mapping[str, Puzzle], grader: Grader) -> list[Graded]:
    """Returns the grades of completions, in order.

    Args:
        answered: Each completion, with the id of its puzzle.
        known: Puzzles by id.
        grader: Rule of grading (see `stages.environments.environment.Environment.grade`).

    Raises:
        IntegrityError: A puzzle is not among the known puzzles.
    """
    pairs = list(answered)
    by_environment: dict[str, list[int]] = {}
    for number, (_, puzzle_id) in enumerate(pairs):
        by_environment.setdefault(_known(puzzle_id, known).environment, []).append(number)
    grades: dict[int, Graded] = {}
    for name, numbers in by_environment.items():
        family = environment.get(name)
        of_family = [(pairs[number][0], known[pairs[number][1]]) for number in numbers]
        if isinstance(family, GradesMany):
            graded = family.grade_many(of_family)
        else:
            graded = [family.grade(text, puzzle, grader) for text, puzzle in of_family]
        grades |= dict(zip(numbers, graded, strict=True))
    return [grades[number] for number in range(len(pairs))]


def _known(puzzle_id: str, known: Mapping[str, Puzzle]) -> Puzzle:
    if puzzle_id not in known:
        raise IntegrityError(f"puzzle {puzzle_id}", "sampled but not in the puzzle set", "rollouts of this set")
    return known[puzzle_id]


def graders_of(table: pl.DataFrame) -> tuple[str, ...]:
    """Returns the rules by which the answers to the puzzles of a table can be read.

    In a mixture they are those of an environment with several rules; the setting that chooses one has no effect on the
    others. If every environment has one rule, the names of these rules are joined.
    """
    if table.is_empty():
        return get_args(Grader)
    rules = [environment.get(name).graders for name in sorted(table["environment"].unique())]
    return next((item for item in rules if len(item) > 1), (", ".join(sorted({item[0] for item in rules})),))


def grader_of(table: pl.DataFrame, grader: Grader) -> str:
    """Returns the rule by which answers are read under a setting; an environment with only one rule uses that one."""
    graders = graders_of(table)
    return grader if grader in graders else graders[0]


def unread_counts(answers: pl.Series) -> dict[str, int]:
    """Returns the numbers of answers that could not be read or compared, by reason (see `Parsed.note`), sorted.

    Args:
        answers: The column `answers` of the `grades` or `results` schema.
    """
    notes = (answer["note"] for row in answers for answer in json.loads(row).values())
    return dict(sorted(Counter(note for note in notes if note).items()))


def assertions(text: str, puzzle: Puzzle) -> list[Asserted] | None:
    """Returns the statements about its puzzle that a completion asserts; None if nothing can be proved about it."""
    solver = environment.get(puzzle.environment)
    return solver.deductions(text, puzzle) if isinstance(solver, Proves) else None


def count_deductions(text: str, puzzle: Puzzle) -> DeductionCounts | None:
    """Returns how many statements about its puzzle a completion asserts; None if nothing can be proved about it."""
    asserted = assertions(text, puzzle)
    return None if asserted is None else DeductionCounts.of(asserted)


def deduction_columns(counts: DeductionCounts | None) -> dict[str, int | None]:
    """Returns counts as columns of a table; all are null if `counts` is None."""
    return dict.fromkeys(DEDUCTION_COLUMNS) if counts is None else asdict(counts)


def taught_texts(table: pl.DataFrame, style: Style | None) -> list[str]:
    """Returns the text that a model is taught for every puzzle of a table: derivations, or answers alone.

    Args:
        table: A table of the `puzzles` schema.
        style: Style of the derivations, which end with the answers; None for the answers alone.

    Raises:
        BadInputError: A puzzle's environment writes no derivation, or cannot derive the answers from the clues.
    """
    puzzles = from_table(table)
    if style is not None:
        return [_derivation(puzzle, style) for puzzle in puzzles]
    return [_answer_writer(puzzle).write_answer(puzzle) for puzzle in puzzles]


def tokenizer_texts(table: pl.DataFrame, style: Style | None) -> list[str]:
    """Returns the texts that make a tokenizer: the prompts, and what a model is taught if the environment writes it.

    Args:
        table: A table of the `puzzles` schema.
        style: Style of the derivations that are taught; None for the answers alone.
    """
    writers = all(isinstance(environment.get(name), WritesAnswers) for name in table["environment"].unique())
    return table["prompt"].to_list() + (taught_texts(table, style) if writers else [])


def names_of(table: pl.DataFrame) -> list[str]:
    """Returns the names that the puzzles of a table use for people, things, places and so on, sorted."""
    found = {name: environment.get(name) for name in table["environment"].unique()}
    namers = {name: item for name, item in found.items() if isinstance(item, NamesThings)}
    puzzles = [puzzle for puzzle in from_table(table) if puzzle.environment in namers]
    return sorted({name for puzzle in puzzles for name in namers[puzzle.environment].names(puzzle)})


def _answer_writer(puzzle: Puzzle) -> WritesAnswers:
    where, remedy = "warm_start", "drop the section"
    return needs(environment.get(puzzle.environment), WritesAnswers, where, remedy)


def _derivation(puzzle: Puzzle, style: Style) -> str:
    where, remedy = "warm_start.text = 'derivations'", "set warm_start.text to answers"
    writer = needs(environment.get(puzzle.environment), WritesDerivations, where, remedy)
    text = writer.write_derivation(puzzle, style)
    if text.strip() in ("", _answer_writer(puzzle).write_answer(puzzle)):
        raise BadInputError(
            "warm_start.text = 'derivations'",
            f"the environment {puzzle.environment} wrote no step for puzzle {puzzle.puzzle_id}",
            "an environment that writes derivations",
            "set warm_start.text to answers",
        )
    return text
