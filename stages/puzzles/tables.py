"""Puzzles between their table and their objects."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import polars as pl

from artifacts.errors import IntegrityError
from artifacts.schemas import PUZZLES, as_table
from stages.puzzles.answers import write_answer
from stages.puzzles.grading import Graded, grade
from stages.puzzles.puzzle import Puzzle


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


def answer_texts(table: pl.DataFrame) -> list[str]:
    """The solver-written answer of every puzzle of a table."""
    return [write_answer(puzzle) for puzzle in from_table(table)]
