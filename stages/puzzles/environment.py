"""What a puzzle family offers, and the families there are.

A family is a folder beside this file that has an object with this interface; `_FAMILIES` names it.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from artifacts.errors import BadInputError
from artifacts.suggestions import did_you_mean
from stages.puzzles.puzzle import Asserted, Checked, Graded, Grader, Kinds, Puzzle


class Environment(Protocol):
    """One puzzle family: generate, read, solve, grade, write the right answer, and prove what is said about a puzzle.

    Every family asks lettered questions, so `stages.puzzles.grading` and `answers` serve all of them.
    """

    @property
    def name(self) -> str:
        """The name that puzzles carry in `Puzzle.environment`."""
        ...

    @property
    def mark(self) -> str:
        """Words that stand in every prompt of this family and in none of another."""
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

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """The grade of a completion; any text at all."""
        ...

    def write_answer(self, puzzle: Puzzle) -> str:
        """The final answers as the prompt asks for them."""
        ...

    def kinds(self, puzzle: Puzzle) -> Kinds:
        """What the puzzle's text is made of: its clues and its questions by kind, those left out that are unread."""
        ...

    def check(self, puzzle: Puzzle, *, minimal: bool = False) -> Checked:
        """Solves the puzzle from its prompt only, and compares; no answers where the clues contradict one another.

        Args:
            minimal: Also prove of each clue that without it there is another solution.
        """
        ...

    def write_derivation(self, puzzle: Puzzle) -> str:
        """A short derivation, proved step by step, and after it the final answers.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read.
        """
        ...

    def deductions(self, text: str, puzzle: Puzzle) -> list[Asserted] | None:
        """The different statements that a completion makes about the puzzle, each with its proof; any text at all.

        None where nothing can be proved: a clue cannot be read, or the clues contradict one another.
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
        found = f"{name[:80]!r}{did_you_mean(name, _FAMILIES)}"
        raise BadInputError("environment", found, f"one of {', '.join(_FAMILIES)}")
    module, _, attribute = _FAMILIES[name].partition(":")
    return cast(Environment, getattr(import_module(module), attribute))


def of_text(prompt: str) -> Environment:
    """The family whose mark stands in `prompt`; the first one, whose reader says what is wrong, where none does."""
    families = [get(name) for name in _FAMILIES]
    return next((family for family in families if family.mark in prompt), families[0])
