"""Asks a model in rounds: requests of token ids, stored as they are answered, so that a killed strategy continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from artifacts.address import Attempt
from artifacts.errors import BadInputError
from artifacts.refs import Checkpoint, Ref
from artifacts.schemas import ROUNDS, as_table
from stages.context import StageContext
from stages.environments.puzzle import Graded, Grader, Puzzle
from stages.environments.tables import (
    are_episodes,
    count_deductions,
    deduction_columns,
    grade_columns,
    graded_texts,
    puzzles_by_id,
    thinking_of,
)
from stages.models.tokenizers.chat import chat_tokenizer
from stages.sampling.client import Prompt
from stages.sampling.collect import adopt_rollouts, collect_prompts, longest_sequence, opens_thought
from stages.sampling.config import SamplingConfig
from stages.strategies.config import BudgetForcing, RoundsStrategy, Sift, ThinkTwice, title_of
from stages.strategies.forcing import budget_forcing, truncation_probe
from stages.strategies.requests import STICKER, Chain, Continuation, Key, Request
from stages.strategies.sift import sift
from stages.strategies.think_twice import think_twice


def refuse_episodes(strategies: Sequence[RoundsStrategy], puzzles: pl.DataFrame) -> None:
    """Refuses strategies that ask in rounds for episodes of several turns, before anything is sampled.

    Raises:
        BadInputError: There are both.
    """
    if strategies and are_episodes(puzzles):
        problem = "asks in rounds, but the environment answers in turns of its own"
        raise BadInputError(f"strategy {title_of(strategies[0])}", problem, "another strategy", "leave it out")


def play(
    strategies: Sequence[RoundsStrategy],
    puzzles: pl.DataFrame,
    rollouts: pl.DataFrame,
    sampled: SamplingConfig,
    grader: Grader,
    weights: Ref[Checkpoint],
    attempt: Attempt[Any],
    ctx: StageContext,
) -> pl.DataFrame:
    """Returns the rounds of strategies: rows of the `rounds` schema.

    Args:
        strategies: At least one strategy.
        puzzles: Rows of the `puzzles` schema.
        rollouts: The sampled answers: rows of the `rollouts` schema, ordered by group and sample.
        sampled: Settings with which they were sampled.
        grader: Rules by which answers are read.
        weights: The checkpoint.
        attempt: The resumable attempt that stores each request as it is answered.
    """
    tables: list[pl.DataFrame] = []
    for strategy in strategies:
        strategy_run = StrategyRun(strategy, puzzles, rollouts, sampled, grader, weights, attempt, ctx)
        if isinstance(strategy, ThinkTwice):
            think_twice(strategy, strategy_run)
        elif isinstance(strategy, Sift):
            sift(strategy, strategy_run)
        elif isinstance(strategy, BudgetForcing):
            budget_forcing(strategy, strategy_run)
        else:
            truncation_probe(strategy, strategy_run)
        tables.append(strategy_run.table())
    return pl.concat(tables)


class StrategyRun:
    """The rounds of one strategy with one checkpoint on some puzzles.

    Attributes:
        strategy: The strategy's settings.
        puzzles: The puzzles by id.
        sampled: Settings of the sampled answers.
        rollouts: The sampled answers: rows of the `rollouts` schema by puzzle and sample.
        tokenizer: The checkpoint's tokenizer.
        chains: The rounds so far.
    """

    def __init__(
        self,
        strategy: RoundsStrategy,
        table: pl.DataFrame,
        rollouts: pl.DataFrame,
        sampled: SamplingConfig,
        grader: Grader,
        weights: Ref[Checkpoint],
        attempt: Attempt[Any],
        ctx: StageContext,
    ) -> None:
        self.strategy, self.sampled = strategy, sampled
        self.grader: Grader = grader
        self.rollouts = {(row["prompt_id"], row["sample"]): row for row in rollouts.iter_rows(named=True)}
        folder = ctx.local_folder(weights)
        self.tokenizer = chat_tokenizer(folder)
        opened = opens_thought(self.tokenizer, thinking_of(table))
        self.puzzles: dict[str, Puzzle] = puzzles_by_id(table, thought_opened=opened)
        self.chains: dict[Key, Chain] = {}
        self._context_tokens = longest_sequence(folder, ctx.profile.engine.max_model_len)
        self._weights, self._attempt, self._ctx = weights, attempt, ctx
        settings = json.dumps(strategy.model_dump(mode="json"), sort_keys=True)
        self._stem = f"rounds-{strategy.strategy}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
        self._asked = 0

    def prompt(self, key: Key, text: str | None = None) -> list[int]:
        """Returns the token ids of one user message: a text, or the prompt of a puzzle."""
        return self.tokenizer.prompt_token_ids(self.puzzles[key[0]].prompt if text is None else text)

    def ask(self, requests: Mapping[Key, Request], temperature: float) -> dict[Key, Continuation]:
        """Returns the completion of each request. Stored completions are not sampled again.

        A stored completion is found by the request's own tokens, so it never answers another request. A prompt that
        fills the model's context gets an empty completion, cut at the limit.
        """
        self._asked += 1
        limit = self._context_tokens
        fitting = {key: item for key, item in requests.items() if len(item.token_ids) < limit}
        names = {_name(key, item): key for key, item in fitting.items()}

        def prompt_of(name: str) -> Prompt:
            item = fitting[names[name]]
            room = min(item.max_tokens, limit - len(item.token_ids))
            special = self._special(item.stop)
            stop = (item.stop,) if item.stop and special is None else ()
            ends = () if special is None else (special,)
            return Prompt(name, item.token_ids, max_tokens=room, stop=stop, stop_token_ids=ends)

        stem = f"{self._stem}-{self._asked}"
        changes = {"samples_per_prompt": 1, "temperature": temperature}
        sampling = self.sampled.model_copy(update=changes)
        replies = dict.fromkeys(requests, Continuation([], "", "length"))
        if names:
            label = f"{self.strategy.strategy}, request {self._asked}"
            how = (sampling, self._weights, self._attempt, self._ctx)
            collect_prompts(list(names), prompt_of, *how, stem=stem, label=label)
            stored = adopt_rollouts(self._attempt, stem, sampling)
            assert stored is not None  # collect_prompts has just written them
            for row in stored.filter(pl.col("prompt_id").is_in(list(names))).iter_rows(named=True):
                reply = Continuation(row["completion_token_ids"], row["text"], row["finish_reason"])
                replies[names[row["prompt_id"]]] = reply
        return replies

    def graded(self, texts: Mapping[Key, str]) -> dict[Key, Graded]:
        """Returns the grades of some texts."""
        grades = graded_texts([(text, key[0]) for key, text in texts.items()], self.puzzles, self.grader)
        return dict(zip(texts, grades, strict=True))

    def without_end(self, reply: Continuation, stop: str) -> list[int]:
        """Returns a completion's tokens without its end token or stop text.

        A token that holds the beginning of the stop text and words before it is left out too.
        """
        ids = reply.token_ids
        if reply.finish_reason != "stop" or not ids:
            return ids
        if ids[-1] in {*self.tokenizer.eos_ids, *self.tokenizer.special_ids, *self.sampled.stop_token_ids}:
            return ids[:-1]
        start = reply.text.rfind(stop) if stop else -1
        if start < 0:
            return ids  # a stop text of the evaluation's own settings
        return [token for token, end in zip(ids, self.tokenizer.token_ends(ids), strict=True) if end <= start]

    def _special(self, stop: str) -> int | None:
        """Returns the first token of a stop text if decoding omits it, so `without_end` cannot find it; else None."""
        ids = self.tokenizer.text_ids(stop) if stop else []
        return ids[0] if ids and ids[0] in self.tokenizer.special_ids else None

    def table(self) -> pl.DataFrame:
        """Returns all rounds: rows of the `rounds` schema."""
        rows: list[dict[str, Any]] = [
            {"prompt_id": key[0], "sample": key[1], "final": row is _last_answer(chain), **row}
            for key, chain in self.chains.items()
            for row in chain.rows
        ]
        answers = [row for row in rows if row["answer"]]
        grades = graded_texts([(row["text"], row["prompt_id"]) for row in answers], self.puzzles, self.grader)
        for row, graded in zip(answers, grades, strict=True):
            row.update(grade_columns(graded))
        title = title_of(self.strategy)
        filled = [
            {
                "strategy": title, "accuracy": None, "exact": None, "answers": None,
                **deduction_columns(
                    count_deductions(row["text"], self.puzzles[row["prompt_id"]]) if row["step"] == STICKER else None
                ),
                **{name: value for name, value in row.items() if name != "answer"},
            }
            for row in rows
        ]  # fmt: skip
        return as_table(filled, ROUNDS)


def _last_answer(chain: Chain) -> dict[str, Any] | None:
    return next((row for row in reversed(chain.rows) if row["answer"]), None)


def _name(key: Key, request: Request) -> str:
    """Returns the name of a request, which holds a digest of its content."""
    content = json.dumps([request.token_ids, request.max_tokens, request.stop])
    return json.dumps([*key, hashlib.sha256(content.encode()).hexdigest()[:16]])
