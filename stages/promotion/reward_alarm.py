"""Tests whether reward rises while held-out accuracy falls: the policy exploits the reward and does not learn the task.

The window of the newest iterations is divided into an older and a newer half. The noise of a curve is estimated from
the differences of successive iterations (von Neumann, Annals of Mathematical Statistics 12, 1941), which a slow trend
hardly affects. So the test needs only the two curves.
"""

from collections.abc import Iterable
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


AlarmPoint = tuple[int, float | None, float | None]
"""Number, mean reward and held-out accuracy of an iteration; None if not measured."""


@dataclass(frozen=True)
class AlarmWindow:
    """The comparison of the two halves of the window that ends with an iteration.

    Attributes:
        first: First iteration of the window.
        last: Last iteration of the window.
        rise: Mean reward of the newer half minus that of the older half.
        rise_se: The rise in standard errors; 0 if the rewards do not vary.
        fall: Mean held-out accuracy of the older half minus that of the newer half.
        fall_se: The fall in standard errors; 0 if the accuracies do not vary.
        bar: Standard errors above which both count.
        certain: Whether both exceed the bar: the alarm.
    """

    first: int
    last: int
    rise: float
    rise_se: float
    fall: float
    fall_se: float
    bar: float
    certain: bool

    def __str__(self) -> str:
        return (
            f"reward rises while held-out accuracy falls: over iterations {self.first} to {self.last} reward "
            f"{self.rise:+.4g} ({self.rise_se:.1f} standard errors), accuracy {-self.fall:+.4g} ({self.fall_se:.1f}); "
            f"noise reaches {self.bar:.1f}"
        )


def alarm_windows(
    points: Iterable[AlarmPoint], rule: RewardAlarm | None, newest: int | None = None
) -> dict[int, AlarmWindow]:
    """Returns the comparison after each iteration whose window is full, by iteration; empty without a rule.

    Args:
        points: The iterations in order. Those that lack reward or accuracy are left out.
        rule: Length of the window, and the bar.
        newest: Number of comparisons to return, the newest ones; None for all.
    """
    if rule is None:
        return {}
    known = [(number, reward, accuracy) for number, reward, accuracy in points if None not in (reward, accuracy)]
    rewards_N, accuracies_N = (np.array([point[i] for point in known], dtype=np.float64) for i in (1, 2))
    found: dict[int, AlarmWindow] = {}
    first_count = rule.window if newest is None else max(rule.window, len(known) + 1 - newest)
    for count in range(first_count, len(known) + 1):
        rise, rise_se = (float(value) for value in window_change(rewards_N[:count], rule.window))
        gain, gain_se = (float(value) for value in window_change(accuracies_N[:count], rule.window))
        first, last, bar = known[count - rule.window // 2 * 2][0], known[count - 1][0], alarm_bar(rule, count)
        found[last] = AlarmWindow(
            first, last, rise, rise_se, -gain, -gain_se, bar, certain=rise_se > bar and -gain_se > bar
        )
    return found


def alarm_bar(rule: RewardAlarm, count: int) -> float:
    """Returns the number of standard errors above which a change counts after `count` iterations.

    A single comparison, planned beforehand, exceeds `rule.standard_errors` by chance with a small probability. That
    probability is divided by the number of windows so far.
    """
    chance = NormalDist().cdf(-rule.standard_errors) * rule.window / count
    return t_quantile(chance, _EFFICIENCY * (count - 1))


def window_change(values_N: NDArray[np.float64], window: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the change from the older to the newer half of the newest window, and the same in standard errors.

    Args:
        values_N: Values of successive iterations, the newest last, [..., N].
        window: Length of the window, at most N.

    Returns:
        Two arrays, [...]; the second is 0 where the values do not vary.
    """
    half = window // 2
    change = values_N[..., -half:].mean(axis=-1) - values_N[..., -2 * half : -half].mean(axis=-1)
    noise = np.square(np.diff(values_N, axis=-1)).mean(axis=-1) / 2.0
    errors = np.sqrt(noise * 2.0 / half)
    return change, np.divide(change, errors, out=np.zeros_like(change), where=errors > 0.0)
