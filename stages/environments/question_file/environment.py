"""The environment of questions from a file. A question has one answer, named `answer`."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from artifacts.errors import BadInputError
from stages.environments.capabilities import Items
from stages.environments.puzzle import FILE_GRADERS, FileGrader, Graded, Grader, Puzzle
from stages.environments.question_file.choice import choose_questions
from stages.environments.question_file.config import QuestionColumns, QuestionFileConfig
from stages.environments.question_file.files import opened_files
from stages.environments.question_file.graders import read_answer, read_gold, written
from stages.environments.question_file.reading import check_part, read_questions
from stages.environments.single_answer import ANSWER, MISSING, single_grade

ColumnsT = TypeVar("ColumnsT", bound=QuestionColumns)


class QuestionFile:
    """Questions that one grader reads; see `stages.environments.environment.Environment`.

    Args:
        grader: The grader.
        pattern: The pattern of the grader `regex`.
    """

    name = "file"

    def __init__(self, grader: FileGrader, pattern: str = "") -> None:
        self._grader: FileGrader = grader
        self._pattern = pattern
        self.graders = (grader,)

    def source(self, config: QuestionFileConfig) -> "QuestionSource[QuestionFileConfig]":
        """Reads the file of a config."""
        return QuestionSource(config)

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns accuracy 1 if the answer in a completion is the right one, else 0.

        Args:
            text: The completion, any text.
            puzzle: Its question.
            grader: Without effect; the question names its own grader.
        """
        said = read_answer(text, self._grader, self._pattern)
        gold = read_gold(puzzle.solution[ANSWER], self._grader)
        right = said is not None and gold is not None and said.value == gold.value
        if said is None:
            return single_grade(None, 0.0, MISSING)
        return single_grade(said.words, float(right), value=str(said.value))

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of the answer; empty if there is none."""
        said = read_answer(text, self._grader, self._pattern)
        return {} if said is None else {ANSWER: said.end}


class WritableQuestionFile(QuestionFile):
    """Questions whose right answers can be written in a form that the grader reads: all graders but `regex`."""

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns the right answer as the grader reads it."""
        return written(puzzle.solution[ANSWER], self._grader)


class QuestionSource(Generic[ColumnsT]):
    """The files of a config, which are found at once.

    Args:
        config: Their path and columns.

    Raises:
        BadInputError: They do not exist, cannot be read, or lack a column.
    """

    def __init__(self, config: ColumnsT) -> None:
        self._config, files = config, opened_files(config)
        self._parts, self.identity = files.parts, dict(files.identity)
        check_part(self._parts[0], config)

    def items(self, sizes: Mapping[str, int], seed: int) -> Items:
        """Returns the questions of each split (see `choice.choose_questions`).

        Raises:
            BadInputError: The file is damaged, or has too few questions.
        """
        questions, empty = read_questions(self._parts, self._config)
        return choose_questions(questions, empty, sizes, seed, self._config)


@lru_cache(maxsize=64)
def question_file(name: str) -> QuestionFile:
    """Returns the environment of a name, `file:GRADER` or `file:regex:PATTERN`; the default grader is `exact`.

    Raises:
        BadInputError: There is no such grader.
    """
    word, _, pattern = name.partition(":")[2].partition(":")
    grader: FileGrader | None = next((item for item in FILE_GRADERS if item == (word or "exact")), None)
    if grader is None:
        expected = ", ".join(f"file:{item}" for item in FILE_GRADERS)
        raise BadInputError("environment", repr(name[:80]), expected, "name a grader")
    return QuestionFile(grader, pattern) if grader == "regex" else WritableQuestionFile(grader)
