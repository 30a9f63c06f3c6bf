"""The interface of environments, and the list of environments.

An environment is a folder beside this file. `_ENVIRONMENTS` names the object in it that has this interface.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from stages.environments.puzzle import Asserted, Checked, Graded, Grader, Kinds, Puzzle, Style


class Environment(Protocol):
    """A kind of puzzle: generates, reads, grades and solves puzzles, and proves statements about a puzzle.

    Environments with lettered questions share `stages.environments.grading.LetteredAnswers`. An environment without
    clues refuses with BadInputError whatever needs them.
    """

    @property
    def name(self) -> str:
        """The name of the environment, as in `Puzzle.environment`."""
        ...

    @property
    def mark(self) -> str | None:
        """Words that occur in every prompt of this environment and in no prompt of another; None if there are none."""
        ...

    @property
    def has_clues(self) -> bool:
        """Whether its puzzles have clues and lettered questions, so that they can be solved and statements proved."""
        ...

    @property
    def graders(self) -> tuple[str, ...]:
        """The rules by which its answers can be read. A setting `grader` chooses among several."""
        ...

    @property
    def tiers(self) -> dict[str, Any]:
        """The configs for `generate` by name of difficulty, easiest first."""
        ...

    def generate(self, config: Any, seed: int) -> Puzzle:
        """Returns a puzzle with exactly one solution, which is the same for (config, seed) on every machine."""
        ...

    def answer_values(self, puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
        """Returns for each letter the values that the puzzle's text allows as its answer."""
        ...

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns the grade of a completion, which may be any text; the time is linear in its length.

        Args:
            text: The completion.
            puzzle: Its puzzle.
            grader: Rule by which answers are read, if the environment has several.
        """
        ...

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of each answer that `grade` can read, by question."""
        ...

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns the right answers as `grade` reads them."""
        ...

    def names(self, puzzle: Puzzle) -> tuple[str, ...]:
        """Returns the names that the puzzle's text uses for people, things, places and so on, without articles."""
        ...

    def read(self, puzzle_id: str, num_clues: int, prompt: str, solution: dict[str, str]) -> Puzzle:
        """Returns a puzzle from its text and solution.

        Raises:
            BadInputError: The text is not of this environment, or the solution does not fit it.
        """
        ...

    def kinds(self, puzzle: Puzzle) -> Kinds:
        """Returns the numbers of the puzzle's clues and questions by kind; those that cannot be read do not count."""
        ...

    def check(self, puzzle: Puzzle, *, minimal: bool = False) -> Checked:
        """Solves the puzzle from its prompt only and compares the result with its solution.

        The result has no answers if the clues contradict one another.

        Args:
            puzzle: The puzzle.
            minimal: Whether to also prove for each clue that there is another solution without it.
        """
        ...

    def write_derivation(self, puzzle: Puzzle, style: Style = "plain") -> str:
        """Returns a short derivation, whose steps are all proved, followed by the right answers.

        `deductions` can read every step, in every style.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read, or the clues do not determine the answers.
        """
        ...

    def deductions(self, text: str, puzzle: Puzzle) -> list[Asserted] | None:
        """Returns the statements about the puzzle in a completion, which may be any text, in order and with verdicts.

        Returns:
            The statements, repeated ones marked as such; None if nothing can be proved, because a clue cannot be read
            or the clues contradict one another.
        """
        ...

    def premises(self, statement: str, puzzle: Puzzle) -> tuple[int, ...] | None:
        """Returns numbers (from 1) of clues that entail a statement, or entail its opposite if they contradict it.

        None of these clues can be left out. A restated clue has its own number as its premise. The tuple is empty if
        the rules of the environment alone decide the statement.

        Args:
            statement: The words of one statement, as in `Asserted.text`.
            puzzle: The puzzle.

        Returns:
            The numbers in ascending order; None if the clues leave the statement open, if the words are not a
            statement, or if nothing can be proved about the puzzle.
        """
        ...


_ENVIRONMENTS = {
    "temporal_clue": "stages.environments.temporal_clue.environment:TEMPORAL_CLUE",
    "zebra": "stages.environments.zebra.environment:ZEBRA",
}
FILE = "file"
"""The environment of questions from a file. The name stored with a question also holds its grader: `file:number`."""


def names() -> tuple[str, ...]:
    """Returns the names of all environments that generate puzzles."""
    return tuple(_ENVIRONMENTS)


def get(name: str) -> Environment:
    """Returns the environment of a name.

    Raises:
        BadInputError: There is no such environment.
    """
    if name.startswith(f"{FILE}:"):
        return cast(Environment, import_module("stages.environments.question_file.environment").question_file(name))
    if name == FILE:
        raise BadInputError(
            "environment",
            "'file', which cannot generate puzzles from a seed",
            f"one of {', '.join(_ENVIRONMENTS)}",
            "name the file in a recipe, below [puzzles.puzzle], and train with it",
        )
    if name not in _ENVIRONMENTS:
        found = f"{name[:80]!r}{did_you_mean(name, _ENVIRONMENTS)}"
        raise BadInputError("environment", found, f"one of {', '.join(_ENVIRONMENTS)}")
    module, _, attribute = _ENVIRONMENTS[name].partition(":")
    return cast(Environment, getattr(import_module(module), attribute))


def of_text(prompt: str) -> Environment:
    """Returns the environment whose mark is in a prompt.

    If no mark is, returns the first environment, whose reader then reports the error.
    """
    environments = [get(name) for name in _ENVIRONMENTS]
    return next((item for item in environments if item.mark and item.mark in prompt), environments[0])
