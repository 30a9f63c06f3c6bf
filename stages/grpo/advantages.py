"""Group-relative advantages from rewards.

Shapes: P puzzles (groups), G completions of one puzzle. Sources: DeepSeekMath (arXiv 2402.03300) for the division by
the group's deviation, "Understanding R1-Zero-like training" (arXiv 2503.20783) for no division, Lite PPO (arXiv
2508.08221) for the batch's deviation, "Back to basics" (arXiv 2402.14740) for the leave-one-out baseline (RLOO).
"""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from artifacts.config import Config

Rewards = npt.NDArray[np.float64]


class AdvantageConfig(Config):
    """Baseline and scale of advantages: an advantage is the reward minus the baseline, divided by the scale."""

    baseline: Literal["group_mean", "leave_one_out", "batch_mean", "none"] = Field(
        default="group_mean",
        description="What is subtracted from a reward: the mean of its group; the mean of the group's other rewards "
        "(RLOO); the mean of the batch, with which groups may have one completion; or nothing, with which rewards of 0 "
        "and 1 select the completions that are reinforced (REINFORCE, Williams 1992).",
    )
    scale: Literal["population_std", "sample_std", "batch_std", "none"] = Field(
        default="population_std",
        description="Divisor of the difference: the standard deviation of the group's rewards (over G, or over G - 1), "
        "the standard deviation of all rewards of the batch (over their number - 1), or nothing (Dr. GRPO).",
    )
    epsilon: float = Field(default=1e-6, ge=0, le=1e6, description="Added to the standard deviation.")
    uniform_tolerance: float = Field(
        default=1e-8,
        ge=0,
        le=1e6,
        description="The advantages of a group are 0 if its largest and smallest reward differ by no more than this; "
        "with the baseline `batch_mean`, all are if those of the batch do. It has no effect with the baseline `none`.",
    )
    level: Literal["outcome", "process"] = Field(
        default="outcome",
        description="`outcome`: every token of a completion has the advantage of its reward. `process`: a token "
        "has this advantage and those of the steps that end at or after it (see `grade.reward.step_rewards`).",
    )
    step_baseline: Literal["all_steps", "same_step"] = Field(
        default="all_steps",
        description="Subtracted from a step's reward: the mean over all steps of the group (DeepSeekMath), or over the "
        "steps of the same number in the group's completions; steps whose reward is null are not numbered.",
    )
    step_discount: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="A step's advantage is multiplied by this once for every step between it and the token; with 0 a "
        "token has only the advantage of its own step.",
    )

    @model_validator(mode="after")
    def _rewards_without_a_baseline_are_not_scaled(self) -> Self:
        if self.level == "outcome":
            self.refuse_unread(("step_baseline", "step_discount"), "with level = 'outcome'")
        if self.baseline == "none" and self.scale != "none":
            raise ValueError(
                f"scale is {self.scale!r}, but without a baseline all rewards may be equal: set scale to none"
            )
        if self.baseline == "batch_mean" and (self.level == "process" or self.scale not in ("batch_std", "none")):
            raise ValueError(
                f"baseline is 'batch_mean', with scale {self.scale!r} and level {self.level!r}: it goes with scale "
                "batch_std or none, and level outcome"
            )
        return self


def batch_advantages(groups: Sequence[Rewards], config: AdvantageConfig) -> list[Rewards]:
    """Returns the advantages of the groups of one batch.

    Args:
        groups: P arrays [G], each with the rewards of one puzzle's completions; G may differ between groups and be 0.
        config: Baseline and scale.

    Returns:
        P arrays [G]. They are exactly 0 where all rewards that are compared, of a group or of the batch, are equal: a
        rounding error in the mean of equal fractions would otherwise give advantages of about 1e-10, which look like a
        signal.
    """
    return [_advantages(rewards_G, groups, config) for rewards_G in groups]


def is_uniform(rewards: Rewards, config: AdvantageConfig) -> bool:
    """Returns whether rewards [N] that are compared give no advantages: there are none, or they equal their mean."""
    return not rewards.size or (config.baseline != "none" and float(np.ptp(rewards)) <= config.uniform_tolerance)


def leave_one_out_factor(count: int, config: AdvantageConfig) -> float:
    """Returns count / (count - 1) for the baseline `leave_one_out`, else 1; also 1 if there is only one reward.

    The factor turns a reward's difference from the mean of all `count` rewards into that from the mean of the others.
    """
    return count / (count - 1) if config.baseline == "leave_one_out" and count > 1 else 1.0


def divisor(rewards: Rewards, batch: Sequence[Rewards], config: AdvantageConfig) -> float:
    """Returns the divisor of differences from the baseline.

    Args:
        rewards: Rewards of one group, [N]; N >= 2 for `sample_std`.
        batch: Arrays with all rewards of the batch.
        config: The scale.
    """
    match config.scale:
        case "none":
            return 1.0
        case "population_std":
            return float(rewards.std()) + config.epsilon
        case "sample_std":
            return float(rewards.std(ddof=1)) + config.epsilon
        case "batch_std":
            return float(np.concatenate(batch).std(ddof=1)) + config.epsilon


def _advantages(rewards_G: Rewards, groups: Sequence[Rewards], config: AdvantageConfig) -> Rewards:
    compared_N = np.concatenate(groups) if config.baseline == "batch_mean" else rewards_G
    if not rewards_G.size or is_uniform(compared_N, config):
        return np.zeros_like(rewards_G)
    centred_G = rewards_G if config.baseline == "none" else rewards_G - compared_N.mean()
    return centred_G * leave_one_out_factor(rewards_G.size, config) / divisor(rewards_G, groups, config)
