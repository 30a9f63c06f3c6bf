"""Questions from a file behind the interface that all environments share.

Such a question has one answer, `answer`, and no clues. So there is nothing to generate, to solve or to prove.
"""

from functools import lru_cache
from typing import Any, NoReturn

from artifacts.errors import BadInputError
from stages.environments.puzzle import (
    FILE_GRADERS,
    Asserted,
    FileGrader,
    Graded,
    Grader,
    Kinds,
    Parsed,
    Puzzle,
    Style,
)
from stages.environments.question_file.graders import read_answer, read_gold

_KEY = "answer"
_KEPT_CHARACTERS = 200
"""Characters of an answer that a grade keeps for readers; the completion itself is stored with the rollouts."""


class QuestionFile:
    """Questions that one grader reads; see `stages.environments.environment.Environment`.

    Args:
        name: `file:GRADER`, or `file:regex:PATTERN`.

    Raises:
        BadInputError: There is no such grader.
    """

    mark = None
    has_clues = False

    def __init__(self, name: str) -> None:
        self.name, self.tiers = name, dict[str, Any]()
        _, _, rule = name.partition(":")
        grader, _, self._pattern = rule.partition(":")
        known: FileGrader | None = next((item for item in FILE_GRADERS if item == grader), None)
        if known is None:
            raise BadInputError(
                "environment", repr(name[:80]), ", ".join(f"file:{item}" for item in FILE_GRADERS), "name a grader"
            )
        self._grader: FileGrader = known
        self.graders = (known,)

    def can_read(self, answer: str) -> bool:
        """Returns whether the grader reads a right answer, and counts it as right where it writes it itself."""
        gold = read_gold(answer, self._grader)
        if gold is None or self._grader == "regex":
            return gold is not None
        written = read_answer(self._written(answer), self._grader)
        return written is not None and written.value == gold.value

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns accuracy 1 if the answer in a completion is the right one, else 0.

        Args:
            text: The completion, any text.
            puzzle: Its question.
            grader: Without effect; the question names its own grader.
        """
        said = read_answer(text, self._grader, self._pattern)
        gold = read_gold(puzzle.solution[_KEY], self._grader)
        right = said is not None and gold is not None and said.value == gold.value
        words = None if said is None else said.words[:_KEPT_CHARACTERS]
        parsed = Parsed(words, words, right, "missing" if said is None else "")
        return Graded(float(right), right, {_KEY: parsed})

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of the answer; empty if there is none."""
        said = read_answer(text, self._grader, self._pattern)
        return {} if said is None else {_KEY: said.end}

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns the right answer as the grader reads it; under `regex` the answer alone."""
        return self._written(puzzle.solution[_KEY])

    def _written(self, answer: str) -> str:
        gold = read_gold(answer, self._grader)
        words = answer if gold is None else gold.words
        if self._grader == "regex":
            return words
        return f"\\boxed{{{words}}}" if self._grader == "boxed" else f"Answer: {words}"

    def answer_values(self, puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
        """Returns the right answer alone: the question does not say which others there are."""
        return {_KEY: (puzzle.solution[_KEY],)}

    def names(self, puzzle: Puzzle) -> tuple[str, ...]:
        """Returns nothing: it is not known which words of the question are names."""
        return ()

    def kinds(self, puzzle: Puzzle) -> Kinds:
        """Returns no kinds: there are no clues, and the questions are not sorted."""
        return Kinds({}, {})

    def deductions(self, text: str, puzzle: Puzzle) -> list[Asserted] | None:
        """Returns None: nothing can be proved about a question without clues."""
        return None

    def premises(self, statement: str, puzzle: Puzzle) -> tuple[int, ...] | None:
        """Returns None, as `deductions` does."""
        return None

    def generate(self, config: Any, seed: int) -> NoReturn:
        """Refuses to generate."""
        raise cannot("environment", "generate puzzles from a seed", "name the file in a recipe and train with it")

    def read(self, puzzle_id: str, num_clues: int, prompt: str, solution: dict[str, str]) -> NoReturn:
        """Refuses to read the published format."""
        raise cannot(puzzle_id, "read the published format", "name the file in a recipe and train with it")

    def check(self, puzzle: Puzzle, *, minimal: bool = False) -> NoReturn:
        """Refuses to solve."""
        raise cannot(f"question {puzzle.puzzle_id}", "solve a question or prove a statement", "leave out --explain")

    def write_derivation(self, puzzle: Puzzle, style: Style = "plain") -> NoReturn:
        """Refuses to derive the answer."""
        raise cannot("warm_start.text = 'derivations'", "derive an answer", "set warm_start.text to answers")


def cannot(where: str, ability: str, remedy: str) -> BadInputError:
    """Returns the error for a request that needs clues or a generator.

    Args:
        where: The setting or command that makes the request.
        ability: The missing ability, as a verb with its object.
        remedy: What the user can do instead.
    """
    return BadInputError(
        where, f"the environment 'file' cannot {ability}", "an environment that can, such as temporal_clue", remedy
    )


@lru_cache(maxsize=64)
def question_file(name: str) -> QuestionFile:
    """Returns the environment of a name, `file:GRADER` or `file:regex:PATTERN`."""
    return QuestionFile(name)
