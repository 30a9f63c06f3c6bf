"""The puzzle as every stage sees it: a prompt and lettered answers; and the grade of an attempt at it."""

from dataclasses import dataclass
from typing import Literal

Grader = Literal["strict", "published"]
Note = Literal["", "missing", "outside", "ambiguous"]


@dataclass(frozen=True)
class Puzzle:
    """One puzzle of any environment.

    Attributes:
        puzzle_id: Unique within a set.
        environment: Name of the environment that made it (see `stages.puzzles.environment`).
        prompt: The whole text shown to the model.
        solution: Letter of each question to its answer.
        num_clues: Number of clues in the prompt.
        seed: Seed it was generated from; None for a puzzle read from a file.
        digest: SHA-256 (hex) of the formal puzzle: cast, layout and clues in any order, not of the text.
        difficulty: Sizes of the puzzle, by name (`suspects`, `weapons`, `rooms`, `times`, `motives`, ...).
    """

    puzzle_id: str
    environment: str
    prompt: str
    solution: dict[str, str]
    num_clues: int
    seed: int | None
    digest: str
    difficulty: dict[str, int]


@dataclass(frozen=True)
class Parsed:
    """What was read for one letter.

    Attributes:
        text: The words after the letter, or None where the letter was not found.
        value: The puzzle's own value that they name, or None.
        correct: Whether it is the answer.
        note: `missing` (no such letter), `outside` (not one of the puzzle's values), `ambiguous` (several), or empty.
    """

    text: str | None
    value: str | None
    correct: bool
    note: Note = ""


@dataclass(frozen=True)
class Graded:
    """A graded completion.

    Attributes:
        accuracy: Fraction of the lettered questions answered right, 0 to 1.
        exact: Whether all of them are.
        answers: What was read, by letter.
    """

    accuracy: float
    exact: bool
    answers: dict[str, Parsed]
