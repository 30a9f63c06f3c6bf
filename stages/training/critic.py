"""Settings of the critic and its batches, for the stages `value` and `pretrain`."""

from collections.abc import Sequence
from logging import Logger, LoggerAdapter
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import NEW_RUN
from artifacts.refs import Grades, Ref, Rollouts
from artifacts.schemas import tool_marks
from artifacts.store.store import Store
from artifacts.tensors import PackedBatch
from stages.grading.graded_rollouts import graded_rollouts
from stages.grpo.gae import last_token_rewards
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_numbered
from stages.models.value_head import ValueHead
from stages.training.job import OptimizerConfig, ValueJob
from stages.training.schedules.learning_rates import LearningRateConfig
from stages.training.trainable import TrainableConfig

LONGER_CONTEXT = f"{NEW_RUN}, with a critic of a longer context or a lower sample.sampling.max_tokens"
"""Remedy for rollouts that do not fit into the critic's context."""
_Number = Annotated[float, Field(ge=-1e6, le=1e6)]


class PretrainConfig(Config):
    """Stored rollouts on which the critic learns before the first iteration. Nothing is sampled for it."""

    run: str = Field(description="Name of a run in the same store, whose model has the same tokenizer.")
    first: int = Field(default=1, ge=1, le=1_000_000, description="First iteration whose rollouts are used.")
    last: int = Field(default=4, ge=1, le=1_000_000, description="Last iteration whose rollouts are used.")
    epochs: int = Field(default=1, ge=1, le=10_000, description="Passes over these rollouts.")
    updates: int = Field(default=16, ge=1, le=1_000_000, description="Optimizer steps of one pass.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"last is {self.last}, before first, which is {self.first}")
        return self


class ValueConfig(LearningRateConfig):
    """A critic that is trained beside the policy, and the advantages that follow from its values."""

    source: str = Field(
        default="policy",
        pattern=r"^(policy|[A-Za-z0-9][A-Za-z0-9._-]{0,63}@[1-9][0-9]{0,6})$",
        description="Model that the critic starts from: `policy`, where GRPO starts, with a head of 0; or "
        "`RUN@ITERATION`, the critic of another run.",
    )
    head: ValueHead = Field(
        default="linear",
        description="`linear`: the value is w h of the last hidden state h. `bounded`: the sigmoid of w h between "
        "`reward_low` and `reward_high` (BPCO, arXiv 2608.23566). w begins at 0.",
    )
    reward_low: _Number = Field(default=0.0, description="Least reward, for the head `bounded`.")
    reward_high: _Number = Field(default=1.0, description="Highest reward, for the head `bounded`.")
    lambda_policy: float = Field(default=1.0, ge=0, le=1, description="Lambda of the advantages (see GAE).")
    length_alpha: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Lambda of the advantages is 1 - 1 / (alpha l) for a completion of l tokens, in place of "
        "`lambda_policy` (VAPO, with 0.05); null = off. At lengths below 1 / alpha it is 0.",
    )
    lambda_critic: float = Field(
        default=1.0, ge=0, le=1, description="Lambda of the critic's targets; with 1 they are the rewards."
    )
    normalise: Literal["none", "batch", "group"] = Field(
        default="none",
        description="Tokens over which advantages are normalised to mean 0 and deviation 1: none, those of the batch, "
        "or those of the completion's group. `group` adds GRPO's baseline again.",
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Largest distance from the old value; moving a value further lowers the loss no more (PPO's value "
        "clip); null = off.",
    )
    updates: int = Field(default=1, ge=1, le=1_000_000, description="Optimizer steps of one pass over the rollouts.")
    epochs: int = Field(default=1, ge=1, le=10_000, description="Passes over the rollouts.")
    row_tokens: int = Field(
        default=2048,
        ge=16,
        le=10_000_000,
        description="Token budget of a row; raised to the longest prompt with its completion.",
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    pretrain: PretrainConfig | None = None

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.reward_low >= self.reward_high:
            raise ValueError(f"reward_low is {self.reward_low}, not below reward_high, which is {self.reward_high}")
        if self.length_alpha is not None and self.lambda_policy != 1.0:
            raise ValueError(
                f"length_alpha replaces lambda_policy, which is {self.lambda_policy}: set one of them (null is off)"
            )
        if self.head == "linear" and (self.reward_low, self.reward_high) != (0.0, 1.0):
            raise ValueError("reward_low and reward_high belong to head = 'bounded', but head is 'linear'")
        if self.pretrain is not None and self.source != "policy":
            raise ValueError(f"pretrain is set, but source is {self.source}, a critic that is trained already")
        return self

    def job(self) -> ValueJob:
        """Returns the settings of the critic that the trainer reads."""
        return ValueJob(
            head=self.head, low=self.reward_low, high=self.reward_high, clip=self.clip, lambda_=self.lambda_critic
        )

    def for_pretraining(self) -> Self:
        """Returns the settings for pretraining: towards the rewards themselves, without a clip.

        The first values are all equal. A clip would keep later values near them, and targets with a lambda below 1
        would reproduce them.
        """
        return self.model_copy(update={"clip": None, "lambda_critic": 1.0})


def valued_rollouts(store: Store, rollouts: Ref[Rollouts], grades: Ref[Grades]) -> pl.DataFrame:
    """Returns the completions that have an advantage, with their grades, sorted by group and sample.

    Masked completions are left out. Groups whose rewards are equal are not: a critic learns from them, too.

    Raises:
        IntegrityError: The grades are not those of the rollouts.
    """
    return graded_rollouts(store, rollouts, grades).filter(pl.col("advantage").is_not_null())


def warn_of_bounds(config: ValueConfig, tables: Sequence[pl.DataFrame], log: Logger | LoggerAdapter[Logger]) -> None:
    """Logs how many rewards the head `bounded` cannot reach, if any."""
    rewards = pl.concat([table["reward"] for table in tables])
    outside = len(rewards) - int(rewards.is_between(config.reward_low, config.reward_high).sum())
    if config.head == "bounded" and outside:
        log.warning(
            "%d of %d rewards, which are from %g to %g, are outside of value.reward_low %g and value.reward_high %g: "
            "the critic cannot learn them", outside, len(rewards), rewards.min(), rewards.max(), config.reward_low,
            config.reward_high,
        )  # fmt: skip


def model_tokens(table: pl.DataFrame) -> list[np.ndarray]:
    """Returns for each completion a boolean array [tokens]: whether the model, not a tool, wrote the token."""
    lengths = table["completion_token_ids"].list.len().to_list()
    return [
        np.ones(length, dtype=np.bool_) if marks is None else ~np.array(marks, dtype=np.bool_)
        for length, marks in zip(lengths, tool_marks(table), strict=True)
    ]


def critic_batch(
    tables: Sequence[pl.DataFrame], config: ValueConfig, updates: int, seed: int
) -> tuple[PackedBatch, npt.NDArray[np.int64]]:
    """Packs completions for the critic; the reward follows the last token that the model wrote.

    Args:
        tables: Rows of `valued_rollouts`, of one or more iterations.
        config: Settings of the critic.
        updates: Optimizer steps of one pass.
        seed: Seed of the shuffle that assigns groups to steps.

    Returns:
        The batch, with rewards in the place of advantages, and the number of each token's completion (see
        `pack_numbered`). Completions are numbered over all tables.
    """
    groups: list[Group] = []
    number = 0
    for table in tables:
        for rows in table.partition_by("group", maintain_order=True):
            branches: list[Branch] = []
            columns = ("completion_token_ids", "sampler_logprobs", "reward")
            for values, own in zip(rows.select(columns).iter_rows(), model_tokens(rows), strict=True):
                rewards = np.zeros(len(own))
                rewards[own] = last_token_rewards(values[2], int(own.sum()))
                branches.append(Branch(values[0], values[1], rewards.tolist(), (~own).tolist(), number=number))
                number += 1
            groups.append(Group(rows["prompt_token_ids"][0].to_list(), branches, number=len(groups)))
    longest = max((len(g.prompt) + len(b.tokens) for g in groups for b in g.branches), default=0)
    row_tokens = max(config.row_tokens, longest)
    return pack_numbered(groups, PackConfig(row_tokens=row_tokens, updates=updates, seed=seed))
