"""Sampling into shards, group by group, so that finished groups survive a crash.

The groups that a crash leaves are those that ended early. If the others got new random numbers, short completions would
be kept and long ones drawn again, and a resumed sample would be shorter on average than an undisturbed one. So each
group has a seed of its own, with which it is sampled again.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from artifacts.activity import doing
from artifacts.address import Attempt
from artifacts.errors import BadInputError
from artifacts.refs import Checkpoint, Ref
from artifacts.schemas import BY_TOOL, ROLLOUTS, as_table
from stages.context import StageContext
from stages.environments.tables import observed_by_id, thinking_of, tool_outputs
from stages.environments.thoughts import THOUGHT_OPENED, ThinkingConfig
from stages.models.shape import read_shape
from stages.models.tokenizers.chat import ChatTokenizer, chat_tokenizer
from stages.sampling.client import GroupSamples, Prompt, seed_of
from stages.sampling.config import SamplingConfig
from stages.sampling.turns import Steps, Tool

_FLUSH_INTERVAL_S = 0.5


def collect(
    puzzles: pl.DataFrame,
    sampling: SamplingConfig,
    weights: Ref[Checkpoint],
    attempt: Attempt[Any],
    ctx: StageContext,
    *,
    stem: str,
    label: str,
) -> dict[str, Any]:
    """Samples each puzzle for which no complete group is stored, and stores groups as they finish.

    Args:
        puzzles: Rows of the `puzzles` schema; the row index is the group's number.
        attempt: The attempt that adopts stored groups and stores new ones.
        stem: First part of the shards' names.
        label: Name of the work on the progress display.

    Returns:
        Counts, speed, the engine's compute type (None for engines that run elsewhere), and whether the chat template
        opens a thought (`THOUGHT_OPENED`), for the manifest.

    Raises:
        BadInputError: A prompt leaves no room for an answer in the model's context, or the environment of a puzzle
            offers no tool, though completions may call one.
    """
    tokenizer = chat_tokenizer(ctx.local_folder(weights))
    opened = opens_thought(tokenizer, thinking_of(puzzles))
    tool = tool_of(puzzles, sampling, thought_opened=opened)
    texts = dict(zip(puzzles["prompt_id"].to_list(), puzzles["prompt"].to_list(), strict=True))

    def prompt_of(prompt_id: str) -> Prompt:
        return Prompt(prompt_id, tokenizer.prompt_token_ids(texts[prompt_id]))

    how = (sampling, weights, attempt, ctx)
    facts = collect_prompts(list(texts), prompt_of, *how, stem=stem, label=label, tool=tool)
    return {**facts, THOUGHT_OPENED: opened}


def collect_prompts(
    names: Sequence[str],
    prompt_of: Callable[[str], Prompt],
    sampling: SamplingConfig,
    weights: Ref[Checkpoint],
    attempt: Attempt[Any],
    ctx: StageContext,
    *,
    stem: str,
    label: str,
    tool: Tool | Steps | None = None,
) -> dict[str, Any]:
    """Samples each prompt for which no complete group is stored, and stores groups as they finish.

    Args:
        names: Unique names of the prompts, which are stored in the column `prompt_id`; the index of a name is the
            group's number.
        prompt_of: Returns the prompt of a name; called only for prompts that are sampled.
        attempt: The attempt that adopts stored groups and stores new ones.
        stem: First part of the shards' names.
        label: Name of the work on the progress display.
        tool: What answers the turns of completions; None if they have one turn.

    Returns:
        As `collect`, without `THOUGHT_OPENED`.

    Raises:
        BadInputError: A prompt leaves no room for an answer in the model's context.
    """
    stored = adopt_rollouts(attempt, stem, sampling)
    group_numbers = {name: index for index, name in enumerate(names)}
    reused = group_numbers.keys() & set(stored["prompt_id"].to_list()) if stored is not None else set[str]()
    folder = ctx.local_folder(weights)
    place = f"{ctx.profile.engine.seed}\n{attempt.prefix}/{stem}"
    prompts = [replace(prompt_of(name), seed=seed_of(f"{place}\n{name}")) for name in names if name not in reused]
    context_tokens = longest_sequence(folder, ctx.profile.engine.max_model_len)
    _check_room(prompts, context_tokens)
    started = time.perf_counter()
    shards = Shards(attempt, stem, sampling, weights, group_numbers)
    try:
        if prompts:
            ctx.progress(label, len(reused), len(group_numbers), {"starting": 1.0})
            with ExitStack() as held:
                with doing("loading"):
                    held.enter_context(ctx.sampling)
                    ctx.engine.ensure(folder, weights.digest)
                started = time.perf_counter()

                def store(group: GroupSamples) -> None:
                    shards.add(group)
                    speed = shards.tokens / (time.perf_counter() - started)
                    ctx.progress(label, len(reused) + shards.groups, len(group_numbers), {"tokens_per_s": speed})

                with doing("engine"):
                    bounded = tool and replace(tool, context_tokens=context_tokens)
                    ctx.engine.sample_groups(prompts, sampling, store, bounded)
    finally:
        shards.flush()
    elapsed_s = time.perf_counter() - started
    return {
        "groups": len(group_numbers),
        "groups_reused": len(reused),
        "compute_dtype": ctx.profile.engine.computes_in,
        "completion_tokens": shards.tokens,
        "sampling_s": elapsed_s,
        "tokens_per_s": shards.tokens / elapsed_s if shards.tokens else 0.0,
    }


def tool_of(puzzles: pl.DataFrame, sampling: SamplingConfig, *, thought_opened: bool) -> Tool | Steps | None:
    """Returns what answers the turns of completions: their environment, or a solver; None if they have one turn.

    Args:
        puzzles: Rows of the `puzzles` schema.
        sampling: Settings that the completions are sampled with.
        thought_opened: Whether the chat template opens a thought (see `opens_thought`).

    Raises:
        BadInputError: Completions may call a tool that an environment does not offer, or a setting does not go
            together with several turns.
    """
    observe = observed_by_id(puzzles, thought_opened=thought_opened)
    if observe is None:
        return Tool(tool_outputs(puzzles)) if sampling.tool_calls else None
    if names := [*sampling.rules_of_a_turn, *(["tool_calls"] if sampling.tool_calls else [])]:
        problem = "set, but the environment answers in several turns, in each of which it would begin again"
        raise BadInputError(f"sampling.{names[0]}", problem, "sampling without it", "leave it out")
    return Steps(observe)


def opens_thought(tokenizer: ChatTokenizer, thinking: ThinkingConfig) -> bool:
    """Returns whether a model's chat template opens a thought in the prompt, which its completions continue.

    Raises:
        BadInputError: Decoding omits the mark that ends a thought, so that no grader can find it.
    """
    if thinking.rule == "kept":
        return False
    if tokenizer.hides(thinking.closing):
        raise BadInputError(
            "puzzles.thinking.closing",
            f"{thinking.closing!r}, a special token of the model, which the texts of completions do not have",
            "a mark that completions show",
            "set puzzles.thinking.rule = 'kept', so that thoughts are graded as well, or use another model",
        )
    message = "question"
    start_of_answer = tokenizer.prompt_text(message).rpartition(message)[2]
    return start_of_answer.rfind(thinking.opening) > start_of_answer.rfind(thinking.closing)


def adopt_rollouts(attempt: Attempt[Any], stem: str, sampling: SamplingConfig) -> pl.DataFrame | None:
    """Adopts the rollouts that this and other writers have stored (see `Attempt.adopt_shards`) and returns them.

    Args:
        attempt: The attempt that adopts them.
        stem: First part of the shards' names.
        sampling: Settings that the rollouts were sampled with; a complete group has `samples_per_prompt` rows.

    Returns:
        Rows of the `rollouts` schema with each complete group once; None if there are none.
    """
    return attempt.adopt_shards(stem, ROLLOUTS, by="prompt_id", rows=sampling.samples_per_prompt)


def longest_sequence(folder: Path, max_model_len: int | None) -> int:
    """Returns the longest sequence of a model, in tokens."""
    positions = read_shape(folder).max_positions
    return positions if max_model_len is None else min(positions, max_model_len)


def _check_room(prompts: Sequence[Prompt], context_tokens: int) -> None:
    """Raises BadInputError for a prompt that fills the context, before an engine refuses it without its name."""
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids), default=None)
    if longest is not None and len(longest.token_ids) >= context_tokens:
        raise BadInputError(
            f"puzzle {longest.prompt_id}",
            f"a prompt of {len(longest.token_ids)} tokens",
            f"fewer than {context_tokens}, the model's context",
            "leave long puzzles out, shorten the prompt, or use a model with a longer context",
        )


class Shards:
    """A buffer of groups, stored as a shard within half a second after `add`; the caller flushes it at the end."""

    def __init__(
        self,
        attempt: Attempt[Any],
        stem: str,
        sampling: SamplingConfig,
        weights: Ref[Checkpoint],
        group_numbers: dict[str, int],
    ) -> None:
        self.attempt, self.stem, self.group_numbers = attempt, stem, group_numbers
        self.constant = {"sampling": json.dumps(sampling.model_dump(mode="json")), "weights_digest": weights.digest}
        self.tokens = self.groups = 0
        self._rows: list[dict[str, Any]] = []
        self._flushed_at = time.monotonic()
        self._lock = threading.Lock()
        self._later: threading.Timer | None = None

    def add(self, group: GroupSamples) -> None:
        rows = [
            {
                "prompt_id": group.prompt_id,
                "group": self.group_numbers[group.prompt_id],
                "sample": index,
                "prompt_token_ids": group.prompt_token_ids,
                "completion_token_ids": completion.token_ids,
                "sampler_logprobs": completion.logprobs,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "engine": f"vllm {group.engine_version} seed {group.engine_seed}",
                "group_s": group.seconds,
                **({} if completion.by_tool is None else {BY_TOOL: completion.by_tool}),
                **self.constant,
            }
            for index, completion in enumerate(group.completions)
        ]
        with self._lock:
            # One call: an exception from a signal comes before or after it, and `flush` follows.
            self._rows.extend(rows)
            self.tokens += sum(completion.model_tokens for completion in group.completions)
            self.groups += 1
            due = time.monotonic() - self._flushed_at >= _FLUSH_INTERVAL_S
            if not due and self._later is None:  # the next group may take minutes
                self._later = threading.Timer(_FLUSH_INTERVAL_S, self._flush_later)
                self._later.daemon = True
                self._later.start()
        if due:
            self.flush()

    def _flush_later(self) -> None:
        with suppress(Exception):  # the rows stay, and the next `flush` raises it
            self.flush()

    def flush(self) -> None:
        with self._lock:
            if self._later is not None:
                self._later.cancel()
                self._later = None
            if self._rows:
                self.attempt.write_shard(self.stem, _table(self._rows), ROLLOUTS)
            self._rows = []
            self._flushed_at = time.monotonic()


def _table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Returns rows, whose columns of tokens hold arrays, as a table of the `rollouts` schema."""
    arrays = [name for name, value in rows[0].items() if isinstance(value, np.ndarray)]
    empty = {name: [] for name in arrays}
    return as_table([row | empty for row in rows], ROLLOUTS).with_columns(
        _lists([row[name] for row in rows]).alias(name) for name in arrays
    )


def _lists(arrays: Sequence[npt.NDArray[Any]]) -> pl.Series:
    """Returns a column with the values of one array in each row.

    Polars takes 30 microseconds for each array alone, longer than a small model takes for a token.
    """
    numbers = np.repeat(np.arange(len(arrays), dtype=np.uint32), [len(values) for values in arrays])
    long = pl.DataFrame({"row": numbers, "values": np.concatenate(arrays)})
    lists = long.group_by("row", maintain_order=True).agg("values")
    every = pl.DataFrame({"row": np.arange(len(arrays), dtype=np.uint32)})
    return every.join(lists, on="row", how="left", maintain_order="left")["values"].fill_null([])
