"""Environments of the package verifiers, played by its own loop: it asks, replies, parses and scores.

The package is optional. This module is imported in the processes with limits only.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

vf: Any = import_module("verifiers")
types: Any = import_module("verifiers.types")
Client: Any = import_module("verifiers.clients").Client


class VerifiersTask:
    """An environment of verifiers with the methods of a user's object.

    Args:
        name: Name of the environment, as `load_environment` takes it.
        arguments: Arguments of the environment's own `load_environment`.

    Raises:
        Exception: It cannot be loaded, or needs what a run does not offer.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        import_module("datasets").disable_progress_bars()
        self._environment: Any = vf.load_environment(name, **arguments)
        if problem := _problem(self._environment):
            raise TypeError(problem)
        self.episodes = not isinstance(self._environment, vf.SingleTurnEnv)
        weights = self._environment.rubric._get_reward_weights()
        self._most = sum(weight for weight in weights if weight > 0)
        if not self._most:
            raise TypeError("no reward function of its rubric has a weight above 0")
        self._loop = asyncio.new_event_loop()
        self._errors = _Errors()
        logging.getLogger("verifiers").addHandler(self._errors)

    def items(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Yields rows of its data set in an order set by the seed."""
        for row in self._environment.get_dataset(n=count, seed=seed):
            messages = row["prompt"]
            yield {**row, "prompt": [{"role": item["role"], "content": item["content"]} for item in messages]}

    def grade(self, completion: str, item: dict[str, Any]) -> float:
        """Returns the reward of a completion; see `play`."""
        return self.play([completion], item)[2]

    def play(self, turns: Sequence[str], item: dict[str, Any]) -> tuple[list[str], bool, float]:
        """Plays an episode from its start.

        Returns:
            What the environment replies to each turn, whether the episode has ended, and the rubric's reward as a
            share of the sum of its positive weights; 0 if penalties outweigh it. An unfinished episode gets the reward
            of one cut there.
        """
        self._errors.messages.clear()
        script = _Script(turns)
        asked = {"example_id": 0, **item}
        output = self._loop.run_until_complete(self._environment.run_rollout(asked, script, "policy", {}))
        if self._errors.messages:
            raise RuntimeError(self._errors.messages[0])
        return script.replies, not script.is_asked_for_more, max(0.0, round(output["reward"] / self._most, 9))


def _problem(environment: Any) -> str | None:
    """Returns what an environment needs and a run does not offer; None if there is nothing."""
    rubric = environment.rubric
    parts = [rubric, *getattr(rubric, "rubrics", [])]
    if not isinstance(environment, vf.MultiTurnEnv) or environment.message_type != "chat":
        return f"it is a {type(environment).__name__}, not a SingleTurnEnv or MultiTurnEnv of chat messages"
    if environment.tool_defs:
        names = ", ".join(tool.name for tool in environment.tool_defs)
        return f"it has tools ({names}), which completions cannot call"
    if any(isinstance(part, vf.JudgeRubric) for part in parts):
        return "its rubric asks another model: use grade.reward.judge with a rubric that does not"
    if rubric.has_group_rewards:
        return "its rubric compares the completions of a group, which are graded one by one"
    return None


class _Script(Client):
    """A client that replays the turns of an episode, and no others.

    Attributes:
        replies: What the environment has replied to each turn.
        is_asked_for_more: Whether the environment has asked for a turn after the last one.
    """

    def __init__(self, turns: Sequence[str]) -> None:
        super().__init__(None)
        self._turns = list(turns)
        self._read = 0
        self.replies: list[str] = []
        self.is_asked_for_more = False

    async def get_response(self, prompt: Any, *_: Any, **__: Any) -> Any:
        """Returns the next turn.

        Raises:
            OverlongPromptError: There is none; the environment then scores what there is.
        """
        if self._read:
            new = prompt[self._read :]
            if other := [message.role for message in new if message.role != "user"] or not new:
                raise TypeError(f"the environment replies with {other or 'nothing'}, expected messages of the user")
            self.replies.append("\n\n".join(str(message.content) for message in new))
        self._read = len(prompt) + 1
        if not self._turns:
            self.is_asked_for_more = True
            raise vf.OverlongPromptError
        message = types.ResponseMessage(content=self._turns.pop(0), finish_reason="stop", is_truncated=False)
        return types.Response(id="", created=0, model="policy", message=message)


_Script.__abstractmethods__ = frozenset[str]()  # the others translate for providers, to which nothing is sent


class _Errors(logging.Handler):
    """Collects what verifiers logs about reward functions that raise, instead of giving them 0 in silence."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.messages.append(record.getMessage())
