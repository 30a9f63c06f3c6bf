"""Conversion between tables of puzzles and `Puzzle` objects, and columns of grades."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Literal

import polars as pl

from artifacts.errors import IntegrityError
from artifacts.schemas import PUZZLES, as_table
from stages.environments import environment
from stages.environments.answers import write_answer
from stages.environments.grading import Graded, grade
from stages.environments.puzzle import Asserted, DeductionCounts, Puzzle

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


def graded_text(
    text: str, puzzle_id: str, known: Mapping[str, Puzzle], grader: Literal["strict", "published"]
) -> Graded:
    """Returns the grade of one completion.

    Args:
        text: The completion.
        puzzle_id: Id of its puzzle.
        known: Puzzles by id.
        grader: Rule of grading (see `stages.environments.grading.grade`).

    Raises:
        IntegrityError: The puzzle is not among the known puzzles.
    """
    if puzzle_id not in known:
        raise IntegrityError(f"puzzle {puzzle_id}", "sampled but not in the puzzle set", "rollouts of this set")
    return grade(text, known[puzzle_id], grader)


def assertions(text: str, puzzle: Puzzle) -> list[Asserted] | None:
    """Returns the statements about its puzzle that a completion asserts; None if nothing can be proved about it."""
    return environment.get(puzzle.environment).deductions(text, puzzle)


def count_deductions(text: str, puzzle: Puzzle) -> DeductionCounts | None:
    """Returns how many statements about its puzzle a completion asserts; None if nothing can be proved about it."""
    asserted = assertions(text, puzzle)
    return None if asserted is None else DeductionCounts.of(asserted)


def deduction_columns(counts: DeductionCounts | None) -> dict[str, int | None]:
    """Returns counts as columns of a table; they are null for None."""
    return dict.fromkeys(DEDUCTION_COLUMNS) if counts is None else asdict(counts)


def taught_texts(table: pl.DataFrame, text: Literal["answers", "derivations"]) -> list[str]:
    """Returns the solver's text for every puzzle of a table: the answers alone, or a derivation with the answers."""
    puzzles = from_table(table)
    if text == "answers":
        return [write_answer(puzzle) for puzzle in puzzles]
    return [environment.get(puzzle.environment).write_derivation(puzzle) for puzzle in puzzles]
