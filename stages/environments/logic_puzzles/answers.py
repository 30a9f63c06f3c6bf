"""Lettered answers: the letters, and the right answers in the format that prompts ask for."""

from stages.environments.puzzle import Puzzle


def letters(count: int) -> list[str]:
    """Returns the first `count` letters, from A."""
    return [chr(ord("A") + i) for i in range(count)]


def write_answer(puzzle: Puzzle) -> str:
    """Returns the lettered answers, one line for each letter: `A. Mrs. White`, `B. Lounge`, ..."""
    return "\n".join(f"{letter}. {answer}" for letter, answer in puzzle.solution.items())
