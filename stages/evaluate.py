"""The stage that measures a checkpoint on held-out puzzles."""

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress, Attempt
from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.identity import Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref, Report
from artifacts.schemas import PUZZLES, RESULTS, as_table
from stages.context import StageContext
from stages.environments.puzzle import Grader, Puzzle
from stages.environments.tables import count_deductions, deduction_columns, graded_texts, grader_of, puzzles_by_id
from stages.sampling.collect import adopt_rollouts, collect
from stages.sampling.config import SamplingConfig
from stages.sampling.turns import own_lengths
from stages.statistics.records import ReportFigures
from stages.statistics.totals import totals, totals_by_task

REVISION = 2


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

    Each group is stored as soon as it is complete, in a folder of its own. A retry samples only the missing groups.

    Args:
        weights: The checkpoint to measure.
        puzzles: The puzzle set.
        split: Split of the puzzle set: `val` where promotion depends on the result, `test` for the final measurement.

    Raises:
        BadInputError: The puzzle set has no such split.
        TransientError: The engine died or hung more often than `restarts` allows.
    """
    identity = Identity.of(
        "evaluate", REVISION, {**settings_of(config), "split": split}, weights=weights, puzzles=puzzles
    )
    if published := out.find(identity):
        return published
    source = Artifact.open(ctx.store, puzzles)
    if f"{split}.parquet" not in source.manifest.files:
        raise BadInputError(f"split {split!r}", "not in the puzzle set", ", ".join(source.names(".parquet")))
    chosen = source.read_table(f"{split}.parquet", PUZZLES).head(config.puzzles)
    shards = out.attempt(identity, resumable=True)
    modes = {"sampled": config.sampled}
    if config.greedy:
        modes["greedy"] = config.sampled.model_copy(update={"samples_per_prompt": 1, "temperature": 0.0})
    results = pl.concat(
        _results(mode, sampling, chosen, weights, config, shards, ctx) for mode, sampling in modes.items()
    )
    attempt = out.attempt(identity)  # not the shards' folder, which another writer may have published with its report
    attempt.write_table("results.parquet", results, RESULTS)
    measured = totals(results)
    figures = ReportFigures(
        puzzles=len(chosen),
        split=split,
        grader=grader_of(chosen, config.grader),
        sampled=measured.sampled,
        greedy=measured.greedy,
        tasks=totals_by_task(results, chosen),
    ).as_json()
    attempt.write_json("report.json", figures)
    facts = {**figures, "compute_dtype": ctx.profile.engine.computes_in}
    return attempt.publish(facts, weights=weights, puzzles=puzzles)


def _results(
    mode: str,
    sampling: SamplingConfig,
    puzzles: pl.DataFrame,
    weights: Ref[Checkpoint],
    config: EvaluateConfig,
    shards: Attempt[Report],
    ctx: StageContext,
) -> pl.DataFrame:
    """Samples the answers of one mode and returns them graded: rows of the `results` schema."""
    collect(puzzles, sampling, weights, shards, ctx, stem=f"rollouts-{mode}", label=f"evaluate {mode}")
    sampled = adopt_rollouts(shards, f"rollouts-{mode}", sampling)
    assert sampled is not None  # collect has just written them
    by_id = puzzles_by_id(puzzles)
    sampled = sampled.sort("group", "sample")
    rows: list[dict[str, Any]] = []
    graded_rows = _graded(sampled, by_id, config.grader)
    for row, graded, own_tokens in zip(sampled.iter_rows(named=True), graded_rows, own_lengths(sampled), strict=True):
        rows.append(
            {
                "puzzle_id": row["puzzle_id"],
                "mode": mode,
                "sample": row["sample"],
                **graded,
                **deduction_columns(count_deductions(row["text"], by_id[row["puzzle_id"]])),
                "finish_reason": row["finish_reason"],
                "completion_tokens": own_tokens,
                "text": row["text"],
            }
        )
    return as_table(rows, RESULTS)


def regrade(results: pl.DataFrame, puzzles: pl.DataFrame, grader: Grader) -> pl.DataFrame:
    """Returns the results with the same completions graded by another grader.

    Args:
        results: Rows of the `results` schema.
        puzzles: Rows of the `puzzles` schema: the puzzles that were answered.
    """
    by_id = puzzles_by_id(puzzles)
    grades = _graded(results, by_id, grader)
    return as_table([{**row, **graded} for row, graded in zip(results.to_dicts(), grades, strict=True)], RESULTS)


def _graded(completions: pl.DataFrame, by_id: Mapping[str, Puzzle], grader: Grader) -> list[dict[str, Any]]:
    """Returns the columns with the grade of each completion."""
    return [
        {
            "accuracy": graded.accuracy,
            "exact": graded.exact,
            "answers": json.dumps({question: vars(answer) for question, answer in graded.answers.items()}),
        }
        for graded in graded_texts(completions.select("text", "puzzle_id").iter_rows(), by_id, grader)
    ]
