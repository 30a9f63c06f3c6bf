"""Tasks of reasoning-gym behind the interface that all environments share.

An item keeps all that its grading needs: the right answer, the generator's metadata, its settings and the release. So a
stored answer is graded again without generating anything.
"""

import hashlib
import json
from functools import lru_cache
from typing import Any

from artifacts.errors import BadInputError
from stages.environments.puzzle import Graded, Grader, Parsed, Puzzle
from stages.environments.reasoning_gym.config import ReasoningGymConfig
from stages.environments.reasoning_gym.generators import entry_at, is_scorable
from stages.environments.reasoning_gym.release import check_release
from stages.processes.limited_calls import LimitedCalls

_KEY, _ITEM = "answer", "item"
"""Keys of `Puzzle.solution`: the right answer, and the item with its settings as JSON."""
_OPEN, _CLOSE = "<answer>", "</answer>"
_KEPT_CHARACTERS = 200
"""Characters of an answer that a grade keeps for readers; the completion itself is stored with the rollouts."""
_SCORING_S = 10.0
"""CPU seconds after which an answer counts as wrong; scorers take milliseconds."""
_LOADING_S = 600.0
"""Seconds by the clock within which a process must have imported the package: 5 s on a free core."""
_INDICES = 2**31
"""Number of items of a generator; some seed a generator of 32-bit seeds with the number of the item."""


def read_answer(text: str) -> tuple[str, int] | None:
    """Returns the answer in a completion, without spaces around it, and the number of characters up to its end.

    It stands between the last `</answer>` and the `<answer>` before it. None if there is none.
    """
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, max(end, 0))
    return None if start < 0 else (text[start + len(_OPEN) : end].strip(), end + len(_CLOSE))


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
            BadInputError: Another release is installed, or the generator or its scorer fails on the item.
        """
        where = f"{self.name}, seed {seed}"
        check_release(config.release or "", where)
        try:
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
            item = json.dumps({**settings, "entry": made}, ensure_ascii=False, allow_nan=False)
        except Exception as error:  # foreign code may raise anything
            found = f"its generator failed: {type(error).__name__}: {error}"
            raise BadInputError(where, found, "an item", "choose other attributes, or another task") from error
        prompt = f"{question.strip()}\n\n{config.instruction}"
        return Puzzle(
            puzzle_id=f"{self._task}-{seed:x}",
            environment=self.name,
            prompt=prompt,
            solution={_KEY: answer, _ITEM: item},
            num_clues=0,
            seed=seed,
            digest=hashlib.sha256(prompt.encode()).hexdigest(),
            difficulty={} if config.level is None else {"level": config.level},
        )

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """Returns accuracy 1 if the scorer gives the answer a full score, else 0; or its score, for partial credit.

        Args:
            text: The completion, any text.
            puzzle: Its item.
            grader: Without effect; the generator's own scorer grades.

        Raises:
            BadInputError: The item was made by another release than the installed one.
            LoadError: The package cannot be imported.
        """
        item: dict[str, Any] = json.loads(puzzle.solution[_ITEM])
        check_release(item["release"], f"item {puzzle.puzzle_id}")
        said = read_answer(text)
        if said is None:
            return Graded(0.0, False, {_KEY: Parsed(None, None, False, "missing")})
        answer, words = said[0], said[0][:_KEPT_CHARACTERS]
        if not is_scorable(self._task, answer):
            return Graded(0.0, False, {_KEY: Parsed(words, None, False, "outside")})
        outcome = _scorer().call(
            self._task, item["level"], item["attributes"], answer, json.dumps(item["entry"], ensure_ascii=False)
        )
        if outcome.failure is not None:
            return Graded(0.0, False, {_KEY: Parsed(words, None, False, "outside")})
        scored, right = outcome.value, outcome.value >= 1.0
        accuracy = scored if item["partial_credit"] else float(right)
        return Graded(accuracy, right, {_KEY: Parsed(words, words, right)})

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """Returns the number of characters up to the end of the answer; empty if there is none."""
        said = read_answer(text)
        return {} if said is None else {_KEY: said[1]}

    def write_answer(self, puzzle: Puzzle) -> str:
        """Returns the right answer as `grade` reads it."""
        return f"{_OPEN}{puzzle.solution[_KEY]}{_CLOSE}"

    def well_formed(self, text: str, puzzle: Puzzle) -> bool:
        """Returns whether a completion has an answer between `<answer>` and `</answer>`."""
        return read_answer(text) is not None


@lru_cache(maxsize=1)
def _scorer() -> LimitedCalls:
    """Returns the processes that score answers: some scorers loop, or take all memory, for some answers."""
    load = "stages.environments.reasoning_gym.generators:load_scorer"
    return LimitedCalls(load, limit_s=_SCORING_S, load_s=_LOADING_S)


@lru_cache(maxsize=256)
def reasoning_gym(name: str) -> ReasoningGym:
    """Returns the environment of a name, `reasoning_gym:TASK`."""
    return ReasoningGym(name)
