"""Writes the right answers of a puzzle in the format that its prompt asks for."""

from stages.environments.puzzle import Puzzle


def write_answer(puzzle: Puzzle) -> str:
    """Returns the lettered answers, one line for each letter: `A. Mrs. White`, `B. Lounge`, ..."""
    return "\n".join(f"{letter}. {answer}" for letter, answer in puzzle.solution.items())
