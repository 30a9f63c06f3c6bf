"""Finds iterations in which reward rises while held-out accuracy falls (see `stages.promotion.reward_alarm`)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stages.promotion.reward_alarm import RewardAlarm, find_divergences


@dataclass(frozen=True)
class Divergence:
    """The comparison of the two halves of the window that ends with an iteration.

    Attributes:
        first: First iteration of the window.
        last: Last iteration of the window.
        rise: Change of the mean reward from the older half to the newer.
        rise_se: The rise in standard errors.
        fall: Change of the mean accuracy, with the opposite sign.
        fall_se: The fall in standard errors.
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


def divergences(
    points: Iterable[tuple[int, float | None, float | None]], rule: RewardAlarm | None
) -> dict[int, Divergence]:
    """Returns the comparison after each iteration whose window is full, by iteration; empty without a rule.

    Args:
        points: Number, mean reward and held-out accuracy of each iteration, in order. Iterations that lack one of the
            two are left out.
        rule: Length of the window, and the bar.
    """
    if rule is None:
        return {}
    known = [(number, reward, accuracy) for number, reward, accuracy in points if None not in (reward, accuracy)]
    rewards_1N, accuracies_1N = (np.array([[point[i] for point in known]], dtype=np.float64) for i in (1, 2))
    found: dict[int, Divergence] = {}
    for count in range(rule.window, len(known) + 1):
        compared = find_divergences(rewards_1N[:, :count], accuracies_1N[:, :count], rule)
        assert compared is not None  # the window is full
        first, last = known[count - rule.window // 2 * 2][0], known[count - 1][0]
        found[last] = Divergence(
            first,
            last,
            rise=float(compared.rise[0]),
            rise_se=float(compared.rise_se[0]),
            fall=float(compared.fall[0]),
            fall_se=float(compared.fall_se[0]),
            bar=compared.bar,
            certain=bool(compared.certain[0]),
        )
    return found
