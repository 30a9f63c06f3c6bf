"""The stage that measures how often checkpoints solve each puzzle of a split."""

from collections.abc import Mapping
from typing import Annotated, Self

import polars as pl
from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.identity import Identity
from artifacts.refs import Checkpoint, PassRates, Puzzles, Ref
from artifacts.schemas import CUT, PASS_RATES, PASS_RATES_FILE
from stages.context import StageContext
from stages.curriculum.pass_rates import RUN, rate_figures, rates
from stages.environments.puzzle import Grader
from stages.environments.tables import graded_texts, puzzles_by_id, read_split
from stages.environments.thoughts import THOUGHT_OPENED
from stages.models.source import ModelConfig
from stages.sampling.collect import adopt_rollouts, collect
from stages.sampling.config import SamplingConfig
from stages.sampling.turns import own_lengths

REVISION = 2  # thoughts are not read


class RatedModel(Config):
    """A model whose pass rates are measured before the first iteration."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,40}$")] = Field(
        description=f"Name of its rates in columns, such as accuracy:NAME. Rates named {RUN!r} are replaced by those "
        "that iterations measure; any other name keeps them."
    )
    source: ModelConfig | None = Field(
        default=None, description="The model, as in the section `model`; null: the model that iterations start from."
    )

    @model_validator(mode="after")
    def _run_is_the_run(self) -> Self:
        if self.name == RUN and self.source is not None:
            raise ValueError(f"{RUN!r} names the run's own policy: drop the source, or choose another name")
        return self


class PassRateConfig(Config):
    """Models that are rated on all train puzzles before the first iteration, for `sample.order` and `sample.where`."""

    models: tuple[RatedModel, ...] = Field(min_length=1, max_length=20, description="Models that are rated.")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="Settings of the sampled answers.")
    grader: Grader = Field(default="strict", description="Rules by which answers are read from a completion.")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError(f"models have one name twice: {', '.join(names)}")
        return self


def rate(
    ctx: StageContext,
    config: PassRateConfig,
    checkpoints: Mapping[str, Ref[Checkpoint]],
    puzzles: Ref[Puzzles],
    *,
    split: str,
    out: ArtifactAddress[PassRates],
) -> Ref[PassRates]:
    """Samples answers of each checkpoint to all puzzles of a split and publishes the pass rates.

    Each group is stored as soon as it is complete; a retry samples only the missing groups. With k samples, a puzzle
    that is solved with probability p has rate 0 with probability (1 - p)^k: 44% for 16 samples and p = 0.05.

    Args:
        checkpoints: The checkpoints by name.
        puzzles: The puzzle set.
        split: Split of the puzzle set.

    Raises:
        BadInputError: The puzzle set has no such split.
        TransientError: The engine died or hung more often than `restarts` allows.
    """
    settings = {"sampling": config.sampling.model_dump(mode="json"), "grader": config.grader, "split": split}
    weights = {f"weights:{name}": checkpoint for name, checkpoint in checkpoints.items()}
    identity = Identity.of("rate", REVISION, settings, puzzles=puzzles, **weights)
    if published := out.find(identity):
        return published
    table = read_split(ctx.store, puzzles, split)
    shards = out.attempt(identity, resumable=True)
    rated: list[pl.DataFrame] = []
    for number, (name, checkpoint) in enumerate(checkpoints.items()):
        stem = f"rollouts{number:02d}"  # not the name, which may be a prefix of another
        facts = collect(table, config.sampling, checkpoint, shards, ctx, stem=stem, label=f"rate {name}")
        by_id = puzzles_by_id(table, thought_opened=facts[THOUGHT_OPENED])
        sampled = adopt_rollouts(shards, stem, config.sampling)
        assert sampled is not None  # collect has just written them
        grades = graded_texts(sampled.select("text", "prompt_id").iter_rows(), by_id, config.grader)
        graded = sampled.select("prompt_id").with_columns(
            pl.Series("accuracy", [item.accuracy for item in grades], pl.Float64),
            pl.Series("exact", [item.exact for item in grades], pl.Boolean),
            sampled["finish_reason"].is_in(CUT).alias("truncated"),
            own_lengths(sampled).alias("tokens"),
        )
        rated.append(rates(graded, name=name, iteration=0, weights_digest=checkpoint.digest))
    attempt = out.attempt(identity)  # not the shards' folder, which another writer may have published with its rates
    pass_rates = pl.concat(rated)
    attempt.write_table(PASS_RATES_FILE, pass_rates, PASS_RATES)
    facts = {"puzzles": len(table), "models": list(checkpoints), "rates": rate_figures(pass_rates)}
    return attempt.publish(facts, puzzles=puzzles, **weights)
