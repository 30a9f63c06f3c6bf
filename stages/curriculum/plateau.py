"""The end of a phase: after a number of iterations, or when a figure no longer rises."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from artifacts.config import Config

PhaseFigure = Literal["reward", "train_accuracy", "train_exact", "sampled_accuracy", "greedy_accuracy"]


class Plateau(Config):
    """Rule that ends a phase when a figure of its iterations has stopped rising."""

    metric: PhaseFigure = Field(
        description="Figure that is watched: mean reward or accuracy of the rollouts, or held-out accuracy."
    )
    plateau_iterations: int = Field(
        default=10, ge=1, le=1_000_000, description="Number of newest iterations without a new highest value."
    )
    min_delta: float = Field(
        default=0.0, ge=0, le=1e6, description="A value is a new highest one only if it exceeds the old by more."
    )


def has_plateaued(values: Sequence[float], rule: Plateau) -> bool:
    """Returns whether none of the newest values exceeds the highest one before them by more than `min_delta`.

    Args:
        values: The figure after each iteration of the phase, in order.
        rule: It compares the last `plateau_iterations` values with all earlier ones. Without earlier ones the result is
            false.
    """
    earlier = values[: -rule.plateau_iterations]
    return bool(earlier) and max(values[len(earlier) :]) <= max(earlier) + rule.min_delta
