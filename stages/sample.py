"""The stage that samples completions from a checkpoint."""

import random
from typing import Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.identity import Identity, settings_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Puzzles, Ref, Rollouts
from artifacts.schemas import PUZZLES
from artifacts.slot import Slot
from stages.context import StageContext
from stages.sampling.collect import collect
from stages.sampling.config import SamplingConfig
from stages.sampling.resample import STEM, ResampleConfig, collect_mixed

REVISION = 1


class SampleConfig(Config):
    """Which puzzles an iteration samples, and how."""

    puzzles_per_iteration: int = Field(default=32, ge=1, le=1_000_000, description="Groups an iteration samples.")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    resample: ResampleConfig | None = Field(
        default=None, description="Dynamic sampling: further puzzles in place of uniformly right or wrong ones."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the order in which the train puzzles are gone through.")

    @property
    def stride(self) -> int:
        """Train puzzles set aside for an iteration: with `resample`, enough for every round to fail."""
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
    out: Slot[Rollouts],
) -> Ref[Rollouts]:
    """Samples a group of completions for each of the iteration's puzzles; with `resample`, for more where needed.

    Finished groups are stored as they come; a retry samples only what is missing.

    Args:
        iteration: Number of the iteration, from 1; iteration i takes the i-th stride of the shuffled train puzzles.

    Raises:
        TransientError: The engine died or hung more often than it is restarted.
    """
    identity = Identity.of(
        "sample", REVISION, {**settings_of(config), "iteration": iteration}, weights=weights, puzzles=puzzles
    )
    if found := out.find(identity):
        return found
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
    """The puzzles of one iteration: each pass goes through all of them in an order of its own, without gaps.

    Args:
        train: All train puzzles.
        count: Puzzles an iteration; at most as many as there are.
        iteration: From 1.
    """
    total, first = len(train), (iteration - 1) * count
    order: list[int] = []
    for epoch in range(first // total, (first + count - 1) // total + 1):
        indices = list(range(total))
        random.Random(f"{seed}/{epoch}").shuffle(indices)
        order += indices[max(0, first - epoch * total) : first + count - epoch * total]
    return train[list(dict.fromkeys(order))]
