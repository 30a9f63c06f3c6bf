"""Whether a learning curve has fallen, or is only noisy.

The newest candidates are compared with those just before them, for many lengths of both stretches. Means of stretches
that no score picked are compared, never the highest of many noisy scores; that the most telling pair of stretches is
then picked is paid for by the bar. This is the generalised likelihood ratio test for a change of a mean at an unknown
time from and to unknown levels (Siegmund and Venkatraman, Annals of Statistics 23, 1995), one-sided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stages.beta import t_quantile

_GROWTH = 1.4  # of the lengths of stretches that are tried, from 4 on


@dataclass(frozen=True)
class Falls:
    """The most telling drop of each of R curves; arrays are [R].

    Attributes:
        since: Candidates in the newer stretch; 0 where no pair of stretches may be compared.
        before: Candidates in the stretch just before it.
        drop: Mean score of the stretch before less that of the newer one.
        standard_errors: The drop in standard errors of itself.
        bar: What the standard errors must be above.
        certain: Whether they are, so that the curve has fallen.
    """

    since: NDArray[np.int64]
    before: NDArray[np.int64]
    drop: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    bar: float
    certain: NDArray[np.bool_]


def find_falls(
    scores_RN: NDArray[np.float64], noise_RN: NDArray[np.float64], puzzles: int, drop_se: float, patience: int
) -> Falls:
    """Looks at R curves after their N-th candidate.

    The newer stretch begins after the curve's highest score, and has at least `patience` candidates.

    Args:
        scores_RN: Scores in the order of the candidates, the newest last.
        noise_RN: Variance of each score around its level, above 0; NaN where it is not known. Its mean is used.
        puzzles: Degrees of freedom of each of these variances.
        drop_se: See `fall_bar`.
        patience: Fewest candidates that make a fall, at least 1.
    """
    curves, count = scores_RN.shape
    known = int(np.isfinite(noise_RN).sum(axis=1).min())
    bar = fall_bar(drop_se, count, puzzles * known) if known and count > 1 else math.inf
    noise_R = np.nanmean(noise_RN, axis=1) if known else np.ones(curves)
    sums = np.concatenate([np.zeros((curves, 1)), scores_RN.cumsum(axis=1)], axis=1)
    highest_R = scores_RN.argmax(axis=1)
    since_R, before_R = np.zeros(curves, dtype=np.int64), np.zeros(curves, dtype=np.int64)
    drop_R, telling_R = np.zeros(curves), np.full(curves, -math.inf)
    for since in _lengths(patience, count - 1):
        start = count - since
        level_R = (sums[:, count] - sums[:, start]) / since
        for before in _lengths(1, start):
            lost_R = (sums[:, start] - sums[:, start - before]) / before - level_R
            errors_R = lost_R / np.sqrt(noise_R * (1.0 / before + 1.0 / since))
            more = (errors_R > telling_R) & (highest_R < start)
            since_R[more], before_R[more] = since, before
            drop_R[more], telling_R[more] = lost_R[more], errors_R[more]
    return Falls(since_R, before_R, drop_R, telling_R, bar, telling_R > bar)


def fall_bar(drop_se: float, count: int, degrees: float) -> float:
    """Standard errors above which the most telling drop of `count` candidates is a fall.

    A single comparison, planned beforehand, exceeds `drop_se` by chance with a small probability. That probability is
    divided by the square of the count, which is about the number of pairs of stretches to pick from. The sum over all
    counts converges, so a curve that stays level is mistaken for a fallen one with a bounded probability however long
    the run: with `drop_se` 2 and `patience` 3, in 3% of the runs of 98 iterations, and of those of 600.

    Args:
        count: At least 2.
        degrees: Degrees of freedom of the noise, for Student's t.
    """
    return t_quantile(NormalDist().cdf(-drop_se) / count**2, degrees)


def _lengths(least: int, most: int) -> Sequence[int]:
    """Lengths of stretches from `least` to `most`: some more than a third longer than the one before, few in all."""
    lengths: list[int] = []
    length = least
    while length <= most:
        lengths.append(length)
        length = length + 1 if length < 4 else math.ceil(length * _GROWTH)
    return lengths
