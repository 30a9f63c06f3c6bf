"""Tests whether a learning curve has fallen or is only noisy.

The mean of the newest candidates is compared with the mean of those just before them, for many lengths of both
stretches. The stretches are not chosen by their scores, so the highest of many noisy scores has no special role. The
bar is raised to correct for taking the most significant pair of stretches. This is the one-sided generalised likelihood
ratio test for a change of a mean at an unknown time from and to unknown levels (Siegmund and Venkatraman, Annals of
Statistics 23, 1995).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stages.statistics.beta import t_quantile

_GROWTH = 1.4  # factor between the lengths of stretches that are tried, from 4 on


@dataclass(frozen=True)
class Falls:
    """The most significant drop of each of R curves; arrays are [R].

    Attributes:
        since: Number of candidates in the newer stretch; 0 if no pair of stretches can be compared.
        before: Number of candidates in the stretch just before it.
        drop: Mean score of the stretch before minus that of the newer one.
        standard_errors: The drop divided by its standard error.
        bar: Number of standard errors above which a curve has fallen.
        certain: Whether the curve has fallen.
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
    """Returns the most significant drop of each of R curves after N candidates.

    The newer stretch begins after the curve's highest score and has at least `patience` candidates.

    Args:
        scores_RN: Scores in the order of the candidates, the newest last, [R, N].
        noise_RN: Variance of each score around its level, above 0, or NaN if unknown, [R, N]. The mean over N is used.
        puzzles: Degrees of freedom of each variance.
        drop_se: Standard errors that a single comparison would have to exceed (see `fall_bar`).
        patience: Smallest number of candidates in a fallen stretch, at least 1.
    """
    curves, count = scores_RN.shape
    known_noises = int(np.isfinite(noise_RN).sum(axis=1).min())
    bar = fall_bar(drop_se, count, puzzles * known_noises) if known_noises and count > 1 else math.inf
    noise_R = np.nanmean(noise_RN, axis=1) if known_noises else np.ones(curves)
    sums = np.concatenate([np.zeros((curves, 1)), scores_RN.cumsum(axis=1)], axis=1)
    highest_R = scores_RN.argmax(axis=1)
    since_R, before_R = np.zeros(curves, dtype=np.int64), np.zeros(curves, dtype=np.int64)
    drop_R, significance_R = np.zeros(curves), np.full(curves, -math.inf)
    for since in _lengths(patience, count - 1):
        start = count - since
        level_R = (sums[:, count] - sums[:, start]) / since
        for before in _lengths(1, start):
            pair_drop_R = (sums[:, start] - sums[:, start - before]) / before - level_R
            pair_significance_R = pair_drop_R / np.sqrt(noise_R * (1.0 / before + 1.0 / since))
            better_R = (pair_significance_R > significance_R) & (highest_R < start)
            since_R[better_R], before_R[better_R] = since, before
            drop_R[better_R], significance_R[better_R] = pair_drop_R[better_R], pair_significance_R[better_R]
    return Falls(since_R, before_R, drop_R, significance_R, bar, significance_R > bar)


def fall_bar(drop_se: float, count: int, degrees: float) -> float:
    """Returns the number of standard errors above which the most significant drop of `count` candidates is a fall.

    A single comparison, planned beforehand, exceeds `drop_se` by chance with a small probability. That probability is
    divided by the square of the count, which is about the number of pairs of stretches to choose from. The sum over all
    counts converges, so the probability that a level curve counts as fallen is bounded for runs of any length: with
    `drop_se` 2 and `patience` 3, it is 3% for runs of 98 iterations, and for those of 600.

    Args:
        drop_se: Standard errors that a single comparison would have to exceed.
        count: Number of candidates, at least 2.
        degrees: Degrees of freedom of the noise, for Student's t.
    """
    return t_quantile(NormalDist().cdf(-drop_se) / count**2, degrees)


def _lengths(least: int, most: int) -> Sequence[int]:
    """Returns some lengths of stretches from `least` to `most`; from 4 on each is about 1.4 times the one before."""
    lengths: list[int] = []
    length = least
    while length <= most:
        lengths.append(length)
        length = length + 1 if length < 4 else math.ceil(length * _GROWTH)
    return lengths
