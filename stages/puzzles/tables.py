"""Puzzles between their table and their objects."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Literal

import polars as pl

from artifacts.errors import IntegrityError
from artifacts.schemas import PUZZLES, as_table
from stages.puzzles import environment
from stages.puzzles.answers import write_answer
from stages.puzzles.grading import Graded, grade
from stages.puzzles.puzzle import DeductionCounts, Puzzle

DEDUCTION_COLUMNS = tuple(field.name for field in fields(DeductionCounts))


def to_table(puzzles: Sequence[Puzzle]) -> pl.DataFrame:
    """Puzzles as rows of the `puzzles` schema."""
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
    """Rows of the `puzzles` schema as puzzles."""
    return [
        Puzzle(**{**row, "solution": json.loads(row["solution"]), "difficulty": json.loads(row["difficulty"])})
        for row in table.iter_rows(named=True)
    ]


def puzzles_by_id(table: pl.DataFrame) -> dict[str, Puzzle]:
    """Puzzles of a table by id."""
    return {puzzle.puzzle_id: puzzle for puzzle in from_table(table)}


def graded_text(
    text: str, puzzle_id: str, known: Mapping[str, Puzzle], grader: Literal["strict", "published"]
) -> Graded:
    """Grades one completion of a known puzzle.

    Raises:
        IntegrityError: The puzzle is not among the known ones.
    """
    if puzzle_id not in known:
        raise IntegrityError(f"puzzle {puzzle_id}", "sampled but not in the puzzle set", "rollouts of this set")
    return grade(text, known[puzzle_id], grader)


def count_deductions(text: str, puzzle: Puzzle) -> DeductionCounts | None:
    """What a completion asserts about its puzzle; None where nothing can be proved."""
    asserted = environment.get(puzzle.environment).deductions(text, puzzle)
    return None if asserted is None else DeductionCounts.of(asserted)


def deduction_columns(counts: DeductionCounts | None) -> dict[str, int | None]:
    """Counts as columns of a table, null where there are none."""
    return dict.fromkeys(DEDUCTION_COLUMNS) if counts is None else asdict(counts)


def taught_texts(table: pl.DataFrame, text: Literal["answers", "derivations"]) -> list[str]:
    """What the solver writes for every puzzle of a table: the answers, with or without how they follow."""
    puzzles = from_table(table)
    if text == "answers":
        return [write_answer(puzzle) for puzzle in puzzles]
    return [environment.get(puzzle.environment).write_derivation(puzzle) for puzzle in puzzles]
