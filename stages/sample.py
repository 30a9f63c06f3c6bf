"""The stage that samples completions from a checkpoint."""

import random
from typing import Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref, Rollouts
from artifacts.schemas import PUZZLES
from stages.context import StageContext
from stages.sampling.collect import collect
from stages.sampling.config import SamplingConfig
from stages.sampling.resample import STEM, ResampleConfig, collect_mixed

REVISION = 1


class SampleConfig(Config):
    """Selection of an iteration's puzzles, and sampling settings."""

    puzzles_per_iteration: int = Field(
        default=32, ge=1, le=1_000_000, description="Number of groups that an iteration samples."
    )
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    resample: ResampleConfig | None = Field(
        default=None,
        description="Dynamic sampling: sample further puzzles in place of those whose answers are all equally "
        "right; null disables it.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the order of the train puzzles.")

    @property
    def stride(self) -> int:
        """Number of train puzzles reserved for an iteration; with `resample`, enough for all of its rounds."""
        return self.puzzles_per_iteration * (1 + (self.resample.max_rounds if self.resample else 0))

    @model_validator(mode="after")
    def _groups_can_differ(self) -> Self:
        if self.resample and (self.sampling.samples_per_prompt == 1 or self.sampling.greedy):
            raise ValueError("resample needs groups that can differ: samples_per_prompt above 1, temperature above 0")
        return self


def sample(
    ctx: StageContext,
    config: SampleConfig,
    weights: Ref[Checkpoint],
    puzzles: Ref[Puzzles],
    *,
    iteration: int,
    out: ArtifactAddress[Rollouts],
) -> Ref[Rollouts]:
    """Samples a group of completions for each of the iteration's puzzles and publishes them as rollouts.

    With `resample`, further puzzles replace those whose completions are all equally right. Each group is stored as soon
    as it is complete. A retry samples only the missing groups.

    Args:
        weights: The checkpoint to sample from.
        puzzles: The puzzle set; its train split is used.
        iteration: Number of the iteration, from 1. Iteration i takes the i-th stride of the shuffled train puzzles.

    Raises:
        TransientError: The engine died or hung more often than `restarts` allows.
    """
    identity = Identity.of(
        "sample", REVISION, {**settings_of(config), "iteration": iteration}, weights=weights, puzzles=puzzles
    )
    if published := out.find(identity):
        return published
    train = Artifact.open(ctx.store, puzzles).read_table("train.parquet", PUZZLES)
    chosen = stride(train, config.stride, iteration, config.seed)
    attempt = out.attempt(identity, resumable=True)
    task = (chosen, config.sampling, weights, attempt, ctx)
    label = f"sample {iteration}"
    if config.resample is None:
        facts = collect(*task, stem=STEM, label=label)
    else:
        facts = collect_mixed(config.puzzles_per_iteration, config.resample, *task, label=label)
    return attempt.publish(facts, weights=weights, puzzles=puzzles)


def stride(train: pl.DataFrame, count: int, iteration: int, seed: int) -> pl.DataFrame:
    """Returns the puzzles of one iteration, each once.

    Iterations take consecutive strides of an endless sequence of passes. Each pass has every train puzzle once, in an
    order of its own. If a stride crosses the end of a pass, it may meet a puzzle twice and then has fewer than `count`
    different ones.

    Args:
        train: All train puzzles.
        count: Length of a stride, at most `len(train)`.
        iteration: Number of the iteration, from 1.
        seed: Seed of the passes' orders.
    """
    total, first = len(train), (iteration - 1) * count
    order: list[int] = []
    for epoch in range(first // total, (first + count - 1) // total + 1):
        indices = list(range(total))
        random.Random(f"{seed}/{epoch}").shuffle(indices)
        order += indices[max(0, first - epoch * total) : first + count - epoch * total]
    return train[list(dict.fromkeys(order))]
