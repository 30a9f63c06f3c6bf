"""The environment of mathematical problems. A problem has one answer, named `answer`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from artifacts.documents.suggestions import listed
from artifacts.errors import BadInputError, DeerstalkerError
from stages.environments.capabilities import Items
from stages.environments.maths.answers import ANSWERS_IN, AnswerIn, final_answer, without_dollars
from stages.environments.maths.config import MathsConfig, golds_of, installed_release
from stages.environments.maths.verdicts import LIMIT_CPU_S, Verdict
from stages.environments.puzzle import Graded, Grader, Puzzle
from stages.environments.question_file.choice import choose_questions
from stages.environments.question_file.environment import QuestionSource
from stages.environments.question_file.reading import FileQuestion, read_questions
from stages.environments.single_answer import ANSWER, CLOSE_TAG, MISSING, OPEN_TAG, single_grade
from stages.processes.limited_calls import CallResult, LimitedCalls

_SHOWN_PROBLEMS = 5
_FIRST_RELEASE = "0.9.0"
"""Sets that were read with this release of math-verify have no release in their identity."""


class Maths:
    """Mathematical problems; a rule gives the place of the answer. See `stages.environments.environment.Environment`.

    Args:
        answer_in: The place of the final answer in a completion.
        release: The release of math-verify that compares answers.
    """

    name = "maths"

    def __init__(self, answer_in: AnswerIn, release: str) -> None:
        self._answer_in: AnswerIn = answer_in
        self._release = release
        self.graders = (f"math-verify {release}",)

    def source(self, config: MathsConfig) -> "ProblemSource":
        """Reads the file of a config."""
        return ProblemSource(config)

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns accuracy 1 if the final answer of a completion has the value of a right one, else 0.

        Args:
            text: The completion, any text.
            puzzle: Its problem.
            grader: Without effect; there is one.
        """
        return self.grade_many([(text, puzzle)])[0]

    def grade_many(self, answered: Sequence[tuple[str, Puzzle]]) -> list[Graded]:
        """Returns the grades of completions, each given with its problem, in order; several processes grade them.

        Raises:
            BadInputError: Another release of math-verify is installed.
        """
        if self._release != installed_release():
            raise BadInputError(
                "environment 'maths'",
                f"math-verify {installed_release()} is installed",
                f"math-verify {self._release}, for which the problems were read",
                f"pip install math-verify=={self._release}, or make the puzzle set again",
            )
        calls = [(text, golds_of(puzzle.solution[ANSWER]), self._answer_in) for text, puzzle in answered]
        return [_graded(_verdict(outcome)) for outcome in _processes().map(calls)]

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of the answer; empty if its place is not known."""
        if self._answer_in == "anywhere":
            return {}
        answer = final_answer(text, self._answer_in)
        return {} if answer is None else {ANSWER: answer.end}

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns a right answer where `grade` expects it."""
        gold = golds_of(puzzle.solution[ANSWER])[0]
        boxed = final_answer(gold)
        answer = rf"\boxed{{{without_dollars(gold if boxed is None else boxed.words)}}}"
        if self._answer_in == "answer_tag":
            return f"{OPEN_TAG}{answer}{CLOSE_TAG}"
        return f"Answer: {answer}" if self._answer_in == "answer_line" else answer

    def well_formed(self, text: str, puzzle: Puzzle) -> bool:
        """Returns whether the thought ends exactly once, by its closing mark on a line of its own.

        Source: `format_reward` in knoveleng/open-rs, src/open_r1/rewards.py; the opening tag is part of the prompt.
        """
        return text.count(f"\n{puzzle.thinking.closing}\n") == 1


class ProblemSource(QuestionSource[MathsConfig]):
    """The files of a config; see `QuestionSource`."""

    def __init__(self, config: MathsConfig) -> None:
        super().__init__(config)
        if (release := installed_release()) != _FIRST_RELEASE:
            self.identity["math_verify"] = release

    def items(self, sizes: Mapping[str, int], seed: int) -> Items:
        """Returns the problems of each split (see `question_file.choice.choose_questions`).

        The fact `unparsed_gold` counts the problems whose right answers cannot be read.

        Raises:
            BadInputError: The file is damaged or has too few problems; or an answer cannot be read, and
                `MathsConfig.unreadable` says to refuse it.
        """
        questions, empty = read_questions(self._parts, self._config)
        unread = unreadable([question.puzzle.solution[ANSWER] for question in questions])
        if unread and self._config.unreadable == "refuse":
            raise _refusal(self._config, [questions[number] for number in unread], len(questions))
        drops = self._config.unreadable == "drop"
        chosen = [question for number, question in enumerate(questions) if not (drops and number in unread)]
        items = choose_questions(chosen, empty, sizes, seed, self._config)
        outcome = "they were dropped" if drops else "no answer to them is right"
        warning = f"{self._config.path}: math-verify cannot read the answers of {len(unread)} problems; {outcome}"
        warnings = (*items.warnings, warning) if unread else items.warnings
        return replace(items, facts={**items.facts, "unparsed_gold": len(unread)}, warnings=warnings)


def unreadable(answers: Sequence[str]) -> set[int]:
    """Returns the numbers (from 0) of right answers that math-verify cannot read."""
    outcomes = _processes().map([("", golds_of(answer), ANSWERS_IN[0]) for answer in answers])
    return {number for number, outcome in enumerate(outcomes) if _verdict(outcome).reason != "no_answer"}


def _refusal(config: MathsConfig, questions: Sequence[FileQuestion], total: int) -> BadInputError:
    answers = [f"{item.puzzle.solution[ANSWER][:40]!r} ({item.where})" for item in questions]
    return BadInputError(
        f"{config.path}, column {config.answer!r}",
        f"{len(questions)} of {total} answers that math-verify cannot read: {listed(answers, _SHOWN_PROBLEMS)}",
        "numbers, or LaTeX",
        "correct them, or set puzzles.puzzle.unreadable = 'drop'",
    )


@lru_cache(maxsize=1)
def _processes() -> LimitedCalls:
    # This limit ends a single long operation of the interpreter, which the limit inside `verdict` cannot interrupt.
    return LimitedCalls("stages.environments.maths.verdicts:load", limit_s=2 * LIMIT_CPU_S)


def _verdict(outcome: CallResult) -> Verdict:
    """Returns the verdict of a call. A failed call has one as well, because its completion made it fail.

    Raises:
        DeerstalkerError: `verdict` raised, or returned an unusable value: a bug in Deerstalker.
    """
    if outcome.failure is None:
        return outcome.value
    if outcome.failure.startswith(("raised", "returned")):
        raise DeerstalkerError("maths", f"grading {outcome.failure}", "a verdict", "report it")
    return Verdict("timeout" if outcome.failure == "timeout" else "failed")


def _graded(result: Verdict) -> Graded:
    note = {"right": "", "wrong": "", "no_answer": MISSING}.get(result.reason, result.reason)
    return single_grade(result.words, float(result.right), note, value=result.value)


@lru_cache(maxsize=64)
def maths(name: str) -> Maths:
    """Returns the environment of a name, `maths:ANSWER_IN:RELEASE`, or `maths` with the defaults.

    Raises:
        BadInputError: There is no such rule.
    """
    parts = name.split(":")[1:] or [ANSWERS_IN[0], installed_release()]
    answer_in: AnswerIn | None = next((item for item in ANSWERS_IN if item == parts[0]), None)
    if len(parts) != 2 or answer_in is None:
        expected = f"maths:ANSWER_IN:RELEASE with {', '.join(ANSWERS_IN)}"
        raise BadInputError("environment", repr(name[:80]), expected, "name a rule, or make the puzzle set again")
    return Maths(answer_in, parts[1])
