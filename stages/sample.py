"""The stage that samples completions from a checkpoint."""

from typing import Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import NEW_RUN, BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, PassRates, Puzzles, Ref, Rollouts
from artifacts.schemas import PASS_RATES, PASS_RATES_FILE
from stages.context import StageContext
from stages.curriculum.order import Order, Selection, Shuffled, columns_of, eligible, take
from stages.curriculum.pass_rates import rated_name
from stages.environments.tables import read_split
from stages.sampling.collect import collect
from stages.sampling.config import SamplingConfig
from stages.sampling.resample import STEM, ResampleConfig, collect_mixed

REVISION, RESAMPLE_REVISION = 1, 2
"""`RESAMPLE_REVISION` is that of iterations with `resample`, which grade: since 2 they read no thoughts."""
WIDER = "wider bounds or a lower puzzles_per_iteration"
"""Change of a config by which its filter leaves enough puzzles."""


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
    order: Order = Field(
        default=Shuffled(), discriminator="by", description="Order in which iterations take the train puzzles."
    )
    where: tuple[Selection, ...] = Field(
        default=(),
        max_length=20,
        description="Filter of the train puzzles: those that at least one of these selections takes; all if it is "
        "empty. Evaluations are never filtered.",
    )

    @property
    def columns(self) -> list[str]:
        """Columns that order and filter read."""
        return columns_of(self.order, self.where)

    @property
    def rated_names(self) -> set[str]:
        """Names of the models whose rates order and filter read."""
        return {name for column in self.columns if (name := rated_name(column)) is not None}

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
    pass_rates: Ref[PassRates] | None = None,
    *,
    iteration: int,
    since: int = 1,
    out: ArtifactAddress[Rollouts],
) -> Ref[Rollouts]:
    """Samples a group of completions for each of the iteration's puzzles and publishes them as rollouts.

    With `resample`, further puzzles replace those whose completions are all equally right. Each group is stored as soon
    as it is complete. A retry samples only the missing groups.

    Args:
        weights: The checkpoint to sample from.
        puzzles: The puzzle set; its train split is used.
        pass_rates: Pass rates that were measured before; read only if the order or the filter needs them.
        iteration: Number of the iteration, from 1. It takes stride `iteration - since + 1` of the ordered puzzles.
        since: Number of the iteration that took the first stride: the first of the run, or of its phase.

    Raises:
        BadInputError: The filter leaves fewer puzzles than an iteration takes, or a column is missing; a prompt leaves
            no room for an answer in the model's context.
        TransientError: The engine died or hung more often than `restarts` allows.
    """
    read = pass_rates if config.rated_names else None
    settings = {**config.model_dump(mode="json"), "iteration": iteration, "since": since}
    revision = REVISION if config.resample is None else RESAMPLE_REVISION
    identity = Identity.of("sample", revision, settings, weights=weights, puzzles=puzzles, pass_rates=read)
    if published := out.find(identity):
        return published
    train = read_split(ctx.store, puzzles, "train")
    rated = None if read is None else Artifact.open(ctx.store, read).read_table(PASS_RATES_FILE, PASS_RATES)
    candidates = eligible_puzzles(train, rated, config, remedy=_from_here(weights))
    chosen = take(candidates, rated, config.order, config.stride, iteration - since + 1, config.seed)
    attempt = out.attempt(identity, resumable=True)
    task = (chosen, config.sampling, weights, attempt, ctx)
    label = f"sample {iteration}"
    if config.resample is None:
        facts = collect(*task, stem=STEM, label=label)
    else:
        facts = collect_mixed(config.puzzles_per_iteration, config.resample, *task, label=label)
    if config.where:
        facts["eligible_puzzles"] = len(candidates)
    return attempt.publish(facts, weights=weights, puzzles=puzzles, pass_rates=read)


def _from_here(weights: Ref[Checkpoint]) -> str:
    """Returns the remedy for a filter that leaves too few puzzles after some iterations: to go on in another run."""
    model = f'model = {{source = "checkpoint", name = "{weights.key}"}}'
    return f"{NEW_RUN}, with {model}, without warm_start and distil, and with {WIDER}"


def eligible_puzzles(
    train: pl.DataFrame, pass_rates: pl.DataFrame | None, config: SampleConfig, *, section: str = "sample", remedy: str
) -> pl.DataFrame:
    """Returns the puzzles from which an iteration takes its own: those that the filter leaves, in order.

    Args:
        train: All train puzzles.
        pass_rates: Rows of the `pass_rates` schema; None if nothing was rated.
        config: Filter and number of puzzles.
        section: Name of the config in the recipe.
        remedy: What the user can do about a filter that leaves too few puzzles.

    Raises:
        BadInputError: The filter leaves fewer puzzles than an iteration takes, or a column is missing.
    """
    puzzles = eligible(train, pass_rates, config.where, seed=config.seed)
    if len(puzzles) < config.stride:
        raise BadInputError(
            f"{section}.where",
            f"it takes {len(puzzles)} of {len(train)} train puzzles",
            f"at least {config.stride}, which an iteration samples",
            remedy,
        )
    return puzzles
