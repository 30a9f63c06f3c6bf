"""A reward that a user writes: `grade.reward.function = "mine.py:reward"` (see docs/own_loss.md).

It runs in processes with limits (see `stages.processes.limited_calls`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.errors import NEW_RUN, BadInputError
from stages.environments.environment import kind_of
from stages.environments.puzzle import Puzzle
from stages.environments.single_answer import ITEM, reward_item
from stages.processes.limited_calls import LimitedCalls, LoadError
from stages.processes.user_file import UserFunction, check_call, load_from, number_or_text

_LOAD = "stages.grading.own_reward:load"
_ARGUMENTS = ("completion", "item", "grade", "tokens")
_REPEATED = 8
"""Number of completions that are judged twice."""


@dataclass(frozen=True)
class Grade:
    """The environment's grade of a completion.

    Attributes:
        accuracy: Share of the answers that are right.
        exact: Whether all are.
        answered: Whether any answer was found.
        truncated: Whether the sampler cut the completion.
    """

    accuracy: float
    exact: bool
    answered: bool
    truncated: bool


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens.

    Attributes:
        completion: Tokens that the model wrote.
        limit: The sampler's max_tokens.
    """

    completion: int
    limit: int


@dataclass(frozen=True)
class Completion:
    """What a reward function gets."""

    text: str
    puzzle: Puzzle
    grade: Grade
    tokens: Tokens

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the function: the item is that of the task, or prompt and solution of a puzzle."""
        solution = dict(self.puzzle.solution)
        stored = solution.pop(ITEM, None)
        if kind_of(self.puzzle.environment) == "reasoning_gym":  # what it stores is for its scorer alone
            stored = None
        item = json.loads(stored) if stored else reward_item(self.puzzle.prompt, solution)
        return self.text, item, self.grade, self.tokens


def own_rewards(function: UserFunction, completions: Sequence[Completion], limit_s: float) -> list[float | None]:
    """Returns a function's rewards for completions, in order; None where it failed or took too long.

    Args:
        function: Its file and name.
        completions: The completions.
        limit_s: CPU seconds for one.

    Raises:
        BadInputError: It cannot be loaded, has changed since the run began, fails for all completions, returns no
            finite number, or returns another number when it is asked again.
    """
    file, target = str(function.found()), function.name.rpartition(":")[2]
    calls = LimitedCalls(_LOAD, file, target, function.sha256, limit_s=limit_s)
    again = completions[:_REPEATED] if len(completions) > 1 else []
    try:
        results = calls.map([one.arguments for one in [*completions, *again]])
    except LoadError as error:
        raise _refused(function, f"cannot be loaded ({error.found})") from error
    finally:
        calls.close()
    for result in results:
        if isinstance(result.value, str):
            raise _refused(function, f"returned {result.value}")
    if results and all(result.failure is not None for result in results):
        raise _refused(function, f"fails for each of {len(completions)} completions ({results[0].failure})")
    values: list[float | None] = [result.value for result in results]
    for first, second in zip(values, values[len(completions) :], strict=False):
        if None not in (first, second) and first != second:
            raise _refused(function, f"returned {first} and then {second} for the same completion")
    return values[: len(completions)]


def _refused(function: UserFunction, found: str) -> BadInputError:
    return BadInputError(
        f"grade.reward.function {function.name}",
        found,
        f"a function of ({', '.join(_ARGUMENTS)}) that returns the same finite number each time",
        f"correct it; {NEW_RUN}",
    )


def load(file: str, name: str, digest: str) -> Callable[..., float | str]:
    """Returns a function that calls the user's one, and returns its number, or the text of anything else.

    Raises:
        Exception: The function cannot be loaded, has changed, or takes other arguments.
    """
    function = load_from(Path(file), name, digest)
    check_call(function, f"def {name}({', '.join(_ARGUMENTS)})", _ARGUMENTS, by_name=True)

    def call(*arguments: Any) -> float | str:
        return number_or_text(function(**dict(zip(_ARGUMENTS, arguments, strict=True))))

    return call
