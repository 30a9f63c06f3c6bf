"""Tests whether reward rises while held-out accuracy falls: the policy exploits the reward and does not learn the task.

The window of the newest iterations is divided into an older and a newer half. The noise of a curve is estimated from
the differences of successive iterations (von Neumann, Annals of Mathematical Statistics 12, 1941), which a slow trend
hardly affects. So the test needs only the two curves.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from artifacts.config import Config
from stages.statistics.beta import t_quantile

_EFFICIENCY = 2.0 / 3.0
"""Degrees of freedom for each difference of successive values."""


class RewardAlarm(Config):
    """Rule by which a run raises an alarm: reward rises while held-out accuracy falls."""

    window: int = Field(
        default=20,
        ge=4,
        le=100_000,
        description="Number of newest iterations that are compared, the newer half with the older half.",
    )
    standard_errors: float = Field(
        default=3.0,
        ge=0,
        le=1000,
        description="Standard errors by which reward must have risen and accuracy must have fallen, after a correction "
        "for the number of windows so far. With 3, 2% of runs of 98 iterations raise a false alarm if reward rises "
        "while accuracy stays level.",
    )


@dataclass(frozen=True)
class Divergences:
    """The newest window of each of R runs; arrays are [R].

    Attributes:
        rise: Mean reward of the newer half minus that of the older half.
        rise_se: The rise divided by its standard error; 0 if the rewards do not vary.
        fall: Mean accuracy of the older half minus that of the newer half.
        fall_se: The fall divided by its standard error; 0 if the accuracies do not vary.
        bar: Number of standard errors above which both count.
        certain: Whether reward has risen while accuracy has fallen.
    """

    rise: NDArray[np.float64]
    rise_se: NDArray[np.float64]
    fall: NDArray[np.float64]
    fall_se: NDArray[np.float64]
    bar: float
    certain: NDArray[np.bool_]


def find_divergences(
    rewards_RN: NDArray[np.float64], accuracies_RN: NDArray[np.float64], rule: RewardAlarm
) -> Divergences | None:
    """Returns the changes of reward and accuracy in the newest window of each of R runs, and whether they diverge.

    Args:
        rewards_RN: Mean reward of each iteration, the newest last, [R, N].
        accuracies_RN: Held-out accuracy after each iteration, [R, N].
        rule: Length of the window, and the bar.

    Returns:
        The divergences; None if there are fewer than `rule.window` iterations.
    """
    count = rewards_RN.shape[1]
    if count < rule.window:
        return None
    rise_R, rise_se_R = _changes(rewards_RN, rule.window)
    gain_R, gain_se_R = _changes(accuracies_RN, rule.window)
    bar = alarm_bar(rule, count)
    return Divergences(rise_R, rise_se_R, -gain_R, -gain_se_R, bar, (rise_se_R > bar) & (-gain_se_R > bar))


def alarm_bar(rule: RewardAlarm, count: int) -> float:
    """Returns the number of standard errors above which a change counts after `count` iterations.

    A single comparison, planned beforehand, exceeds `rule.standard_errors` by chance with a small probability. That
    probability is divided by the number of windows so far.
    """
    chance = NormalDist().cdf(-rule.standard_errors) * rule.window / count
    return t_quantile(chance, _EFFICIENCY * (count - 1))


def _changes(values_RN: NDArray[np.float64], window: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the change from the older to the newer half of the window, and the same in standard errors, both [R]."""
    half = window // 2
    change_R = values_RN[:, -half:].mean(axis=1) - values_RN[:, -2 * half : -half].mean(axis=1)
    noise_R = np.square(np.diff(values_RN, axis=1)).mean(axis=1) / 2.0
    errors_R = np.sqrt(noise_R * 2.0 / half)
    return change_R, np.divide(change_R, errors_R, out=np.zeros_like(change_R), where=errors_R > 0.0)
