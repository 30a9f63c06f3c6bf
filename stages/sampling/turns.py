"""Completions in turns: the model calls a tool, or acts in an environment, reads the reply and goes on.

A turn is one request, token ids in and token ids out. Its tokens stay as they were sampled; only the reply is tokenized
and appended, and the next request continues after it. A request has a seed of its own, so the tokens do not depend on
the requests that an engine decodes together, except where rounding decides between two tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl

from artifacts.schemas import BY_TOOL
from stages.environments.solver_tool import CALL_END, read_call, without_marks, write_episode, write_tool_output
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import GroupSamples, Prompt, SampledCompletion, seed_of
from stages.sampling.completions import Completion, Logprobs, Tokens
from stages.sampling.config import SamplingConfig
from stages.sampling.replicas.call import Answer


@dataclass(frozen=True)
class Tool:
    """A tool that completions can call.

    Attributes:
        tool_output: Function that returns the tool's answer, as sentences, from a `prompt_id` and the lines of a call.
        context_tokens: Longest sequence of the model, in tokens; None if it is not known.
    """

    tool_output: Callable[[str, list[str]], list[str]]
    context_tokens: int | None = None
    reply_may_end: ClassVar[bool] = False
    """Whether a reply can end the completion, so that it is requested even if no token is left."""

    def stop(self, sample: _Sample, config: SamplingConfig) -> tuple[str, ...]:
        """Returns the strings that end the next turn of a completion, besides those of the config."""
        return (CALL_END,) if sample.replies < config.tool_calls else ()

    def answers(self, turn: Completion, stop: Sequence[str]) -> bool:
        """Returns whether a turn that was sampled with these strings is answered."""
        return turn.stop_reason in stop

    def left(self, sample: _Sample, config: SamplingConfig, reply: Sequence[int] = ()) -> int:
        """Returns the number of tokens that a completion may still get after a reply."""
        return config.max_tokens - sample.own

    def reply(self, sample: _Sample, prompt_id: str, tokenizer: ChatTokenizer) -> list[int] | None:
        """Returns the tokens of the reply to the last turn; None if the completion ends with it."""
        return tokenizer.text_ids(write_tool_output(self.tool_output(prompt_id, read_call(sample.turns[-1]))))

    def text(self, sample: _Sample, tokenizer: ChatTokenizer) -> str:
        """Returns the text of a completion."""
        return tokenizer.decode(sample.token_ids.tolist())


@dataclass(frozen=True)
class Steps:
    """An environment that answers each turn with a message of the user, until the episode ends.

    Attributes:
        observe: Function that returns the observation from a `prompt_id` and the turns so far; None ends the episode.
        context_tokens: As of `Tool`.
    """

    observe: Callable[[str, Sequence[str]], str | None]
    context_tokens: int | None = None
    reply_may_end: ClassVar[bool] = True

    def stop(self, sample: _Sample, config: SamplingConfig) -> tuple[str, ...]:
        """See `Tool`."""
        return ()

    def answers(self, turn: Completion, stop: Sequence[str]) -> bool:
        """See `Tool`."""
        return turn.finish_reason == "stop"

    def left(self, sample: _Sample, config: SamplingConfig, reply: Sequence[int] = ()) -> int:
        """See `Tool`; observations count, because nothing else bounds their length."""
        return config.max_tokens - len(sample.token_ids) - len(reply)

    def reply(self, sample: _Sample, prompt_id: str, tokenizer: ChatTokenizer) -> list[int] | None:
        """See `Tool`."""
        sample.turns[-1] = without_marks(sample.turns[-1])
        if (observation := self.observe(prompt_id, sample.turns)) is None:
            return None
        sample.observations.append(without_marks(observation))
        return tokenizer.reply_ids(sample.token_ids.tolist(), observation)

    def text(self, sample: _Sample, tokenizer: ChatTokenizer) -> str:
        """See `Tool`; observations are between marks, and one that no turn follows is left out."""
        *turns, last = sample.turns
        return write_episode([*turns, without_marks(last)], sample.observations[: len(turns)])


@dataclass(eq=False)
class _Sample:
    """One completion of a group, as far as it is sampled.

    Attributes:
        by_tool: For each token whether the tool wrote it.
        own: Number of tokens that the model wrote.
        replies: Number of turns that were answered.
        turns: Text of each turn.
        observations: Texts that an environment replied.
    """

    token_ids: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: Logprobs = field(default_factory=lambda: np.empty(0, np.float32))
    by_tool: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    own: int = 0
    replies: int = 0
    turns: list[str] = field(default_factory=list[str])
    observations: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None

    def add(self, token_ids: Tokens, logprobs: Logprobs, *, by_tool: bool) -> None:
        """Appends tokens."""
        self.token_ids = np.concatenate([self.token_ids, token_ids])
        self.logprobs = np.concatenate([self.logprobs, logprobs])
        self.by_tool = np.concatenate([self.by_tool, np.full(len(token_ids), by_tool)])
        self.own += 0 if by_tool else len(token_ids)


@dataclass
class _Group:
    """The completions of one prompt, and the time at which the first turn was sent, in seconds of the call."""

    prompt: Prompt
    samples: list[_Sample]
    started_s: float | None = None


class Conversations:
    """The groups of a call whose completions have several turns.

    Args:
        prompts: Prompts with unique ids.
        config: Sampling settings.
        tool: What answers the turns.
        tokenizer: The model's tokenizer.
        seed: Seed of the call.
        weights_digest: Digest of the weights; the seeds of the requests depend on it.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        config: SamplingConfig,
        tool: Tool | Steps,
        tokenizer: ChatTokenizer,
        seed: int,
        weights_digest: str,
    ) -> None:
        self._config, self._tool, self._tokenizer = config, tool, tokenizer
        self._seed, self._weights_digest = seed, weights_digest
        self._groups: dict[str, tuple[_Group, list[_Sample]]] = {}
        """The group and the samples that a request in progress belongs to, by the request's id."""
        self.first: list[Prompt] = []
        """The requests of the first turns, one for each group."""
        for prompt in prompts:
            group = _Group(prompt, [_Sample() for _ in range(config.samples_per_prompt)])
            self.first.append(self._request(group, None, prompt.token_ids))

    def take(self, answer: Answer) -> tuple[list[Prompt], GroupSamples | None]:
        """Adds a finished turn, and lets the tool answer it.

        Returns:
            The requests of the next turns, and the group if all of its completions have ended.

        Raises:
            EngineLostError: The answer is inconsistent, or comes from other weights than those loaded.
            BadInputError: A log-probability is not finite.
        """
        turns = answer.completions(self._config)
        group, samples = self._groups.pop(answer.prompt.prompt_id)
        if group.started_s is None:
            group.started_s = answer.started_s
        further: list[Prompt] = []
        for sample, turn in zip(samples, turns, strict=True):
            sample.add(turn.token_ids, turn.logprobs, by_tool=False)
            sample.turns.append(self._tokenizer.decode(turn.token_ids.tolist()))
            answered = self._tool.answers(turn, answer.prompt.stop)
            sample.finish_reason = self._answered(sample, turn, group) if answered else turn.finish_reason
            if sample.finish_reason is None:
                further.append(self._request(group, sample, [*group.prompt.token_ids, *sample.token_ids.tolist()]))
        ended = all(sample.finish_reason is not None for sample in group.samples)
        return further, self._finished(group, answer) if ended else None

    def _answered(self, sample: _Sample, turn: Completion, group: _Group) -> str | None:
        """Appends the reply to a turn and returns None if the completion goes on; else why it has ended."""
        if not self._tool.reply_may_end and self._tool.left(sample, self._config) <= 0:
            return "length"
        reply = self._tool.reply(sample, group.prompt.prompt_id, self._tokenizer)
        if reply is None:
            return turn.finish_reason
        length, limit = len(group.prompt.token_ids) + len(sample.token_ids) + len(reply), self._tool.context_tokens
        if self._tool.left(sample, self._config, reply) <= 0 or (limit is not None and length >= limit):
            return "length"
        sample.add(np.array(reply, np.int32), np.zeros(len(reply), np.float32), by_tool=True)
        sample.replies += 1
        return None

    def _request(self, group: _Group, sample: _Sample | None, token_ids: Sequence[int]) -> Prompt:
        """Returns the request of a sample's next turn, or of the first turn of all samples, and records it."""
        samples = group.samples if sample is None else [sample]
        number = None if sample is None else group.samples.index(sample)
        name = json.dumps([group.prompt.prompt_id, number, samples[0].replies])
        self._groups[name] = group, samples
        text = f"{self._seed}\n{group.prompt.seed}\n{self._weights_digest}\n{name}"
        return replace(
            group.prompt,
            prompt_id=name,
            token_ids=token_ids,
            samples=len(samples),
            max_tokens=self._tool.left(samples[0], self._config),
            seed=seed_of(text),
            stop=self._tool.stop(samples[0], self._config),
        )

    def _finished(self, group: _Group, last: Answer) -> GroupSamples:
        started_s, source = group.started_s or 0.0, last.member.source
        return GroupSamples(
            group.prompt.prompt_id,
            list(group.prompt.token_ids),
            [
                SampledCompletion(
                    sample.token_ids,
                    sample.logprobs,
                    str(sample.finish_reason),
                    self._tool.text(sample, self._tokenizer),
                    sample.by_tool,
                )
                for sample in group.samples
            ],
            source.weights_digest,
            source.version,
            self._seed,
            last.started_s + last.seconds - started_s,
        )


def own_lengths(rollouts: pl.DataFrame) -> pl.Series:
    """Returns the number of tokens of each completion that the model wrote.

    Args:
        rollouts: Rows of the `rollouts` schema.
    """
    lengths = rollouts["completion_token_ids"].list.len()
    return lengths - rollouts[BY_TOOL].list.sum() if BY_TOOL in rollouts.columns else lengths
