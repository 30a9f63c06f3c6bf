"""Writes the final answers of a puzzle the way its prompt asks for them."""

from stages.puzzles.puzzle import Puzzle


def write_answer(puzzle: Puzzle) -> str:
    """The lettered answer block, one line a letter: `A. Mrs. White`, `B. Lounge`, ..."""
    return "\n".join(f"{letter}. {answer}" for letter, answer in puzzle.solution.items())
