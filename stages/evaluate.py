"""The stage that measures a checkpoint on held-out puzzles."""

from collections.abc import Mapping
from typing import Any, Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress, Attempt
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.refs import Checkpoint, Puzzles, Ref, Report
from artifacts.schemas import LOGPROB, RESULTS, ROUNDS, ROUNDS_FILE, as_table
from stages.context import StageContext
from stages.environments.puzzle import Grader, Puzzle
from stages.environments.tables import (
    count_deductions,
    deduction_columns,
    grade_columns,
    graded_texts,
    grader_of,
    puzzles_by_id,
    read_split,
)
from stages.environments.thoughts import THOUGHT_OPENED
from stages.sampling.collect import adopt_rollouts, collect
from stages.sampling.config import SamplingConfig
from stages.sampling.turns import own_lengths
from stages.statistics.records import ReportFigures
from stages.statistics.totals import totals, totals_by_task
from stages.strategies.config import Strategy, problem_of, rounds_strategies
from stages.strategies.figures import rounds_figures, sample_figures
from stages.strategies.rounds import play, refuse_episodes

REVISION = 6  # powers and grouped digits


class HeldOutSampling(SamplingConfig):
    """Sampling settings of an evaluation; by default it draws fewer samples a prompt than an iteration does."""

    samples_per_prompt: int = Field(default=4, ge=1, le=1024, description="Number of sampled answers to each puzzle.")


class EvaluateConfig(Config):
    """Settings of an evaluation."""

    puzzles: int = Field(
        default=64, ge=1, le=10_000_000, description="Number of held-out puzzles, from the start of the split."
    )
    sampled: HeldOutSampling = Field(default_factory=HeldOutSampling, description="Settings of the sampled answers.")
    greedy: bool = Field(default=True, description="Also take the most likely answer to each puzzle, once.")
    grader: Grader = Field(default="strict", description="Rules by which answers are read from a completion.")
    strategies: tuple[Strategy, ...] = Field(
        default=(),
        max_length=64,
        description="Strategies at test time that are measured as well, a table each. Those that choose among the "
        "samples (`single`, `majority`, `best_of`) are measured anyway",
    )

    @model_validator(mode="after")
    def _strategies_can_be_measured(self) -> Self:
        if problem := problem_of(self.strategies, self.sampled.samples_per_prompt, self.sampled.tool_calls):
            raise ValueError(problem)
        return self

    @property
    def identity_settings(self) -> dict[str, Any]:
        """The settings as JSON, without the strategies that only choose among the samples."""
        return self.model_copy(update={"strategies": rounds_strategies(self.strategies)}).model_dump(mode="json")


def evaluate(
    ctx: StageContext,
    config: EvaluateConfig,
    weights: Ref[Checkpoint],
    puzzles: Ref[Puzzles],
    *,
    split: str,
    out: ArtifactAddress[Report],
) -> Ref[Report]:
    """Samples answers to held-out puzzles, grades them and publishes a report of means with 95% intervals.

    Each group, and each request of a strategy that asks in rounds, is stored as soon as it is complete, outside the
    report's folder. A retry samples only the missing ones. The report has the texts of the rounds in `rounds.parquet`.

    Args:
        weights: The checkpoint to measure.
        puzzles: The puzzle set.
        split: Split of the puzzle set: `val` where promotion depends on the result, `test` for the final measurement.

    Raises:
        BadInputError: The puzzle set has no such split.
        TransientError: The engine died or hung more often than `restarts` allows.
    """
    identity = Identity.of(
        "evaluate", REVISION, {**config.identity_settings, "split": split}, weights=weights, puzzles=puzzles
    )
    if published := out.find(identity):
        return published
    chosen, asking = read_split(ctx.store, puzzles, split).head(config.puzzles), rounds_strategies(config.strategies)
    refuse_episodes(asking, chosen)
    shards = out.attempt(identity, resumable=True)
    modes = {"sampled": config.sampled}
    if config.greedy:
        modes["greedy"] = config.sampled.model_copy(update={"samples_per_prompt": 1, "temperature": 0.0})
    opened = False
    for mode, sampling in modes.items():
        facts = collect(chosen, sampling, weights, shards, ctx, stem=f"rollouts-{mode}", label=f"evaluate {mode}")
        opened = facts[THOUGHT_OPENED]
    by_id = puzzles_by_id(chosen, thought_opened=opened)
    results = pl.concat(
        _results(mode, _stored(shards, mode, sampling), by_id, config.grader) for mode, sampling in modes.items()
    )
    attempt = out.attempt(identity)  # not the folder of the shards, which other writers share
    attempt.write_table("results.parquet", results, RESULTS)
    measured, chosen_among = totals(results), sample_figures(results)
    strategies = dict(chosen_among.strategies)
    if asking:
        rollouts = _stored(shards, "sampled", config.sampled)
        rounds = play(asking, chosen, rollouts, config.sampled, config.grader, weights, shards, ctx)
        attempt.write_table(ROUNDS_FILE, rounds, ROUNDS)
        strategies |= rounds_figures(rounds, chosen)
    figures = ReportFigures(
        puzzles=len(chosen),
        split=split,
        grader=grader_of(chosen, config.grader),
        sampled=measured.sampled,
        greedy=measured.greedy,
        tasks=totals_by_task(results, chosen),
        strategies=strategies,
        reliability=chosen_among.reliability,
    ).as_json()
    attempt.write_json("report.json", figures)
    facts = {**figures, "compute_dtype": ctx.profile.engine.computes_in, THOUGHT_OPENED: opened}
    return attempt.publish(facts, weights=weights, puzzles=puzzles)


def _results(mode: str, sampled: pl.DataFrame, by_id: Mapping[str, Puzzle], grader: Grader) -> pl.DataFrame:
    """Returns the graded completions of one mode: rows of the `results` schema."""
    rows: list[dict[str, Any]] = []
    graded_rows = _graded(sampled, by_id, grader)
    for row, graded, model_tokens in zip(sampled.iter_rows(named=True), graded_rows, own_lengths(sampled), strict=True):
        rows.append(
            {
                "prompt_id": row["prompt_id"],
                "mode": mode,
                "sample": row["sample"],
                **graded,
                **deduction_columns(count_deductions(row["text"], by_id[row["prompt_id"]])),
                "finish_reason": row["finish_reason"],
                "completion_tokens": model_tokens,
                "text": row["text"],
                LOGPROB: min(0.0, sum(row["sampler_logprobs"])),  # rounding may give a certain token more than 0
            }
        )
    return as_table(rows, RESULTS)


def _stored(shards: Attempt[Report], mode: str, sampling: SamplingConfig) -> pl.DataFrame:
    """Returns the completions of one mode, which `collect` has stored, by group and sample."""
    stored = adopt_rollouts(shards, f"rollouts-{mode}", sampling)
    assert stored is not None
    return stored.sort("group", "sample")


def regrade(
    results: pl.DataFrame, puzzles: pl.DataFrame, grader: Grader, *, thought_opened: bool = False
) -> pl.DataFrame:
    """Returns the results with the same completions graded by another grader.

    Args:
        results: Rows of the `results` schema.
        puzzles: Rows of the `puzzles` schema: the puzzles that were answered.
        grader: Rules by which answers are read.
        thought_opened: The fact `THOUGHT_OPENED` of the report.
    """
    by_id = puzzles_by_id(puzzles, thought_opened=thought_opened)
    grades = _graded(results, by_id, grader)
    return as_table([{**row, **graded} for row, graded in zip(results.to_dicts(), grades, strict=True)], RESULTS)


def _graded(completions: pl.DataFrame, by_id: Mapping[str, Puzzle], grader: Grader) -> list[dict[str, Any]]:
    """Returns the columns with the grade of each completion."""
    graded = graded_texts(completions.select("text", "prompt_id").iter_rows(), by_id, grader)
    return [grade_columns(grades) for grades in graded]
