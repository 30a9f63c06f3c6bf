"""The environment of tasks of reasoning-gym.

An item keeps all that its grading needs: the right answer, the generator's metadata, its settings and the release. So
a completion of a stored item is graded without its generator.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from artifacts.errors import BadInputError
from stages.environments.puzzle import Graded, Grader, Puzzle
from stages.environments.reasoning_gym.config import ReasoningGymConfig
from stages.environments.reasoning_gym.generators import entry_at, is_scorable, setting_problem
from stages.environments.reasoning_gym.release import check_release
from stages.environments.single_answer import (
    ANSWER,
    CLOSE_TAG,
    ITEM,
    MISSING,
    OPEN_TAG,
    between_tags,
    single_grade,
    single_item,
)
from stages.environments.thoughts import answer_start
from stages.processes.cpu_limit import CpuLimitError, cpu_limit
from stages.processes.limited_calls import CallResult, LimitedCalls

_MAKING_S = 60.0
"""CPU seconds after which a generator is assumed not to return; most take milliseconds."""
_SCORING_S = 10.0
"""CPU seconds after which an answer counts as wrong; scorers take milliseconds."""
_LOADING_S = 600.0
"""Wall-clock seconds within which a process must import the package, which takes 5 s on a free core."""
_INDICES = 2**31
"""Number of items of a generator. Some generators use the number of an item as a 32-bit seed."""


def read_answer(text: str) -> tuple[str, int] | None:
    """Returns the answer in a completion, without spaces around it, and the number of characters up to its end.

    Returns None if there is no answer between tags (see `between_tags`).
    """
    words = between_tags(text)
    return None if words is None else (text[slice(*words)].strip(), words[1] + len(CLOSE_TAG))


class ReasoningGym:
    """One task of reasoning-gym; see `stages.environments.environment.Environment`.

    Args:
        name: `reasoning_gym:TASK`.
    """

    graders = ("scorer",)

    def __init__(self, name: str) -> None:
        self.name, self._task = name, name.partition(":")[2]

    def generate(self, config: ReasoningGymConfig, seed: int) -> Puzzle:
        """Returns an item of the generator, the same for (config, seed) on every machine.

        Raises:
            BadInputError: Another release is installed, or the generator fails or does not return.
        """
        where = f"{self.name}, seed {seed}"
        check_release(config.release or "", where)
        if problem := setting_problem(config.task, config.level, json.dumps(config.attributes)):
            raise BadInputError(where, problem, "settings of its generator", "correct puzzles.puzzle")
        try:
            with cpu_limit(_MAKING_S):
                made = entry_at(self._task, config.level, config.attributes, seed % _INDICES)
            question, answer = made["question"], made["answer"]
            if not (isinstance(question, str) and isinstance(answer, str)):
                raise TypeError("its question or its answer is not a text")
            settings = {
                "level": config.level,
                "attributes": config.attributes,
                "partial_credit": config.partial_credit,
                "release": config.release,
            }
            # gsm_symbolic has fractions among its metadata, which its scorer does not read
            item = json.dumps({**settings, "entry": made}, ensure_ascii=False, allow_nan=False, default=str)
        except CpuLimitError as error:
            raise _unusable(where, f"its generator took more than {_MAKING_S:g} s of CPU time") from error
        except Exception as error:  # third-party code may raise anything
            raise _unusable(where, f"its generator failed: {type(error).__name__}: {error}") from error
        return single_item(
            f"{self._task}-{seed:x}",
            self.name,
            f"{question.strip()}\n\n{config.instruction}",
            {ANSWER: answer, ITEM: item},
            seed=seed,
            difficulty=None if config.level is None else {"level": config.level},
        )

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns accuracy 1 if the scorer gives a full score, else 0; with `partial_credit`, the score itself.

        Args:
            text: The completion, any text.
            puzzle: Its item.
            grader: Without effect; the generator's own scorer grades.
        """
        return self.grade_many([(text, puzzle)])[0]

    def grade_many(self, answered: Sequence[tuple[str, Puzzle]]) -> list[Graded]:
        """Returns the grades of completions, each given with its item, in order; several processes score them.

        The note is `outside` if the scorer may not see the answer, or raises. If the scorer fails in another way, the
        note is the reason, such as `timeout`.

        Raises:
            BadInputError: An item was made by another release than the installed one.
            LoadError: The package cannot be imported.
        """
        answers = [None if (said := read_answer(text)) is None else said[0] for text, _ in answered]
        items: list[dict[str, Any]] = [json.loads(puzzle.solution[ITEM]) for _, puzzle in answered]
        for item, (_, puzzle) in zip(items, answered, strict=True):
            check_release(item["release"], f"item {puzzle.prompt_id}")
        calls = {
            number: (self._task, item["level"], item["attributes"], answer, json.dumps(item["entry"]))
            for number, (answer, item) in enumerate(zip(answers, items, strict=True))
            if answer is not None and is_scorable(self._task, answer)
        }
        outcomes = dict(zip(calls, _scorer().map([*calls.values()]), strict=True))
        return [
            _graded(answer, item["partial_credit"], outcomes.get(number))
            for number, (answer, item) in enumerate(zip(answers, items, strict=True))
        ]

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of the answer; empty if there is none."""
        said = read_answer(text)
        return {} if said is None else {ANSWER: said[1]}

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns the right answer as `grade` reads it."""
        return f"{OPEN_TAG}{puzzle.solution[ANSWER]}{CLOSE_TAG}"

    def well_formed(self, text: str, puzzle: Puzzle) -> bool:
        """Returns whether a completion has an answer between `<answer>` and `</answer>` after its thought."""
        start = answer_start(text, puzzle.thinking)
        return start is not None and read_answer(text[start:]) is not None


def _unusable(where: str, found: str) -> BadInputError:
    return BadInputError(where, found, "an item", "choose other attributes, or another task")


def _graded(answer: str | None, partial_credit: bool, outcome: CallResult | None) -> Graded:
    """Returns the grade of an answer.

    Args:
        answer: The answer; None if there is none.
        partial_credit: Whether accuracy is the score.
        outcome: The call of the scorer; None if it may not see the answer.
    """
    if answer is None:
        return single_grade(None, 0.0, MISSING)
    if outcome is None or (outcome.failure or "").startswith("raised"):
        return single_grade(answer, 0.0, "outside")
    if outcome.failure is not None:
        return single_grade(answer, 0.0, outcome.failure)
    return single_grade(answer, outcome.value if partial_credit else float(outcome.value >= 1.0))


@lru_cache(maxsize=1)
def _scorer() -> LimitedCalls:
    """Returns the processes that score answers: some scorers loop, or take all memory, for some answers."""
    load = "stages.environments.reasoning_gym.generators:load_scorer"
    return LimitedCalls(load, limit_s=_SCORING_S, load_s=_LOADING_S)


@lru_cache(maxsize=256)
def reasoning_gym(name: str) -> ReasoningGym:
    """Returns the environment of a name, `reasoning_gym:TASK`."""
    return ReasoningGym(name)
