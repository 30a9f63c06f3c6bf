"""The stage that grades rollouts and computes their advantages."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from pydantic import Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import GRADES, PUZZLES, ROLLOUTS, as_table
from stages.context import StageContext
from stages.environments.grading import answers_end
from stages.environments.tables import count_deductions, deduction_columns, graded_text, puzzles_by_id
from stages.grpo.advantages import AdvantageConfig, batch_advantages
from stages.grpo.rewards import Judged, RewardConfig, reward_terms
from stages.grpo.surprise import surprise, tokens_until
from stages.models.tokenizers.chat import ChatTokenizer

REVISION = 2


class GradeConfig(Config):
    """Settings of grader, reward and advantages."""

    grader: Literal["strict", "published"] = Field(
        default="strict", description="Rules by which answers are read from a completion."
    )
    reward: RewardConfig = Field(default_factory=RewardConfig)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)


def grade(
    ctx: StageContext,
    config: GradeConfig,
    rollouts: Ref[Rollouts],
    puzzles: Ref[Puzzles],
    *,
    out: ArtifactAddress[Grades],
) -> Ref[Grades]:
    """Grades every completion and computes its reward and its advantage within its group.

    A completion is truncated if the sampler cut it at the token limit or by `early_stop`. `reward.truncated` sets the
    reward of such a completion. A masked completion is graded, but it has no advantage and does not count in the
    advantages of others.

    Raises:
        IntegrityError: The rollouts name a puzzle that is not in the set.
    """
    identity = Identity.of("grade", REVISION, config, rollouts=rollouts, puzzles=puzzles)
    if published := out.find(identity):
        return published
    opened = Artifact.open(ctx.store, rollouts)
    sampled = opened.read_tables(ROLLOUTS).sort("group", "sample")
    decode = ChatTokenizer(_sampled_model(opened, ctx)).decode if config.reward.surprise_weight else None
    known = puzzles_by_id(Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES))
    rows: list[dict[str, Any]] = []
    sums: defaultdict[str, float] = defaultdict(float)
    for row in sampled.iter_rows(named=True):
        graded = graded_text(row["text"], row["puzzle_id"], known, config.grader)
        truncated = row["finish_reason"] in ("length", "early_stop")
        deduced = count_deductions(row["text"], known[row["puzzle_id"]]) if config.reward.deductions_weight else None
        judged = Judged(
            accuracy=graded.accuracy,
            exact=graded.exact,
            truncated=truncated,
            sound=deduced.sound if deduced else 0.0,
            surprise=_surprise(row, graded.answers.keys(), config, decode) if decode else 0.0,
            text=row["text"],
            letters=graded.answers.keys(),
            tokens=len(row["completion_token_ids"]),
            limit_tokens=json.loads(row["sampling"])["max_tokens"],
        )
        terms = reward_terms(judged, config.reward)
        for name, term in terms.items():
            sums[f"reward/{name}/mean"] += term / len(sampled)
        rows.append(
            {
                "puzzle_id": row["puzzle_id"],
                "group": row["group"],
                "sample": row["sample"],
                "accuracy": graded.accuracy,
                "exact": graded.exact,
                "truncated": truncated,
                "reward": sum(terms.values()),
                "answers": json.dumps({letter: vars(answer) for letter, answer in graded.answers.items()}),
                "grader": config.grader,
                **deduction_columns(deduced),
            }
        )
    graded_rows = _with_advantages(rows, config)
    attempt = out.attempt(identity)
    attempt.write_table("grades.parquet", graded_rows, GRADES)
    return attempt.publish({**summary(graded_rows, sampled), **sums}, rollouts=rollouts, puzzles=puzzles)


def _sampled_model(rollouts: Artifact, ctx: StageContext) -> Path:
    """Returns the folder of the model that the rollouts were sampled from, for its tokenizer."""
    return ctx.local_folder(Ref(**rollouts.manifest.inputs["weights"]))


def _surprise(
    row: Mapping[str, Any], letters: Collection[str], config: GradeConfig, decode: Callable[[list[int]], str]
) -> float:
    until = answers_end(row["text"], letters, config.grader)
    return surprise(row["sampler_logprobs"], tokens_until(decode, row["completion_token_ids"], until))


def _with_advantages(rows: Sequence[dict[str, Any]], config: GradeConfig) -> pl.DataFrame:
    """Returns the rows as a table with advantages. A masked completion has none (null)."""
    frame = as_table(rows, GRADES).drop("advantage")
    compared = frame.filter(~pl.col("truncated")) if config.reward.truncated == "masked" else frame
    groups = [group["reward"].to_numpy() for group in compared.partition_by("group", maintain_order=True)]
    advantages = np.concatenate([np.zeros(0), *batch_advantages(groups, config.advantage)])
    by_sample = compared.select("group", "sample").with_columns(pl.Series("advantage", advantages))
    return frame.join(by_sample, on=["group", "sample"], how="left", maintain_order="left").select(*GRADES.columns)


def summary(grades: pl.DataFrame, rollouts: pl.DataFrame) -> dict[str, float]:
    """Returns the figures of an iteration's rollouts that are shown to people, by name.

    Args:
        grades: Rows of the `grades` schema.
        rollouts: The completions that they grade.
    """
    lengths = rollouts["completion_token_ids"].list.len()
    spread = grades.group_by("group").agg(
        (pl.col("reward").max() - pl.col("reward").min()).alias("spread"), pl.col("reward").std().alias("std")
    )
    return {
        "reward/mean": _mean(grades["reward"]),
        "reward/std_within_group": _mean(spread["std"].fill_null(0.0)),
        "accuracy/mean": _mean(grades["accuracy"]),
        "exact/mean": _mean(grades["exact"].cast(pl.Float64)),
        "groups/uniform_fraction": _mean((spread["spread"] <= 1e-8).cast(pl.Float64)),
        "completion_tokens/mean": _mean(lengths.cast(pl.Float64)),
        "completion_tokens/max": float(np.max(lengths.to_numpy(), initial=0)),
        "truncated/fraction": _mean((rollouts["finish_reason"] == "length").cast(pl.Float64)),
        "early_stopped/fraction": _mean((rollouts["finish_reason"] == "early_stop").cast(pl.Float64)),
    }


def _mean(values: pl.Series) -> float:
    return float(np.mean(values.to_numpy())) if len(values) else 0.0
