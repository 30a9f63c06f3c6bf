"""The learning rate of an iteration and of its optimizer steps."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from stages.training.trainable import TrainedConfig

LEARNING_RATE_SETTINGS = ("learning_rate", "min_learning_rate", "schedule", "schedule_iterations", "warmup_iterations")
"""Settings that determine the learning rate of an iteration. The identity contains that rate instead of them."""


class LearningRateConfig(TrainedConfig):
    """Schedule of the learning rate over iterations, and its division over the steps of an iteration."""

    learning_rate: float = Field(
        default=1e-6,
        gt=0,
        le=10.0,
        description="Highest learning rate of the schedule; 1e-5 if it is left out and `trainable` is LoRA.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="How the learning rate falls to `min_learning_rate` until the end of `schedule_iterations`: "
        "`linear` from the first iteration on, `cosine` from the end of the warm-up.",
    )
    min_learning_rate: float = Field(
        default=0.0, ge=0, le=10.0, description="Learning rate at the end of a falling schedule."
    )
    schedule_iterations: int = Field(
        default=1000, ge=1, le=1_000_000, description="Length of a falling schedule, warm-up included."
    )
    warmup_iterations: int = Field(
        default=0, ge=0, le=1_000_000, description="Iterations over which the learning rate rises linearly."
    )
    learning_rate_of: Literal["step", "iteration"] = Field(
        default="step",
        description="`step`: the learning rate of every optimizer step. `iteration`: a total that the steps of an "
        "iteration divide; each has learning_rate / max(steps of a pass, `least_shares`) (OpenPipe's dynamic rate, "
        "rl-experiments notebook 026, with 6e-5).",
    )
    least_shares: int = Field(
        default=25, ge=1, le=1_000_000, description="Least divisor of the rate under `learning_rate_of = 'iteration'`."
    )

    @model_validator(mode="after")
    def _rates_agree(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate {self.min_learning_rate} is above learning_rate {self.learning_rate}")
        if self.learning_rate_of == "step":
            self.refuse_unread(("least_shares",), "with learning_rate_of = 'step'")
        if self.schedule == "cosine" and self.warmup_iterations >= self.schedule_iterations:
            raise ValueError(
                f"warmup_iterations {self.warmup_iterations} must be below schedule_iterations "
                f"{self.schedule_iterations} for the cosine to fall"
            )
        return self


def learning_rate_at(config: LearningRateConfig, iteration: int) -> float:
    """Returns the learning rate of an iteration.

    The rate is `min_learning_rate` + s (`learning_rate` - `min_learning_rate`). With i = `iteration`,
    n = `schedule_iterations` and w = `warmup_iterations`, `linear` has s = 1 - (i-1)/n. `cosine` has
    s = (1 + cos(pi t)) / 2 with t = (i-1)/n, or t = (i-w)/(n-w) after a warm-up: the highest rate at w, the lowest at n
    (Hugging Face's cosine_with_min_lr one step earlier: its first step has the rate 0). After n the rate is
    `min_learning_rate`; if that is 0, the rate stays at its last positive value. During the warm-up the whole rate is
    multiplied by i/w.

    Args:
        config: The schedule.
        iteration: Number of the iteration, from 1.
    """
    warmup = min(1.0, iteration / config.warmup_iterations) if config.warmup_iterations else 1.0
    warmup_length = config.warmup_iterations if config.schedule == "cosine" else 0
    length = config.schedule_iterations - warmup_length
    last = length - (0 if config.min_learning_rate else 1)
    elapsed = min(max(0, iteration - max(1, warmup_length)), last) / length
    decay = {"constant": 1.0, "linear": 1.0 - elapsed, "cosine": (1.0 + math.cos(math.pi * elapsed)) / 2}
    falling = config.learning_rate - config.min_learning_rate
    return falling * warmup * decay[config.schedule] + config.min_learning_rate * warmup


def step_rate(config: LearningRateConfig, iteration: int, steps: int) -> float:
    """Returns the learning rate of each optimizer step of an iteration; a pass has `steps` of them."""
    return shared_rate(config, learning_rate_at(config, iteration), steps)


def shared_rate(config: LearningRateConfig, rate: float, steps: int) -> float:
    """Returns the learning rate of one optimizer step; the iteration has `rate`, and a pass has `steps` steps."""
    return rate / max(steps, config.least_shares) if config.learning_rate_of == "iteration" else rate
