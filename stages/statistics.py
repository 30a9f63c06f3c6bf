"""Means of clustered samples with their intervals.

Completions of one puzzle resemble each other, so the puzzle, not the completion, is the unit that is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stages.beta import beta_quantile, t_quantile

_TAIL = 0.025  # on each side of a 95% interval
_NORMAL = NormalDist()
_Z95 = -_NORMAL.inv_cdf(_TAIL)
_EQUAL = 1e-9  # values that rounding keeps apart are equal
_FEW = ((50.0, 2.0), (math.inf, 3.0))
"""Up to which count Wilson's bound is modified, by the largest sample size that it holds for (Brown et al., 4.1.1)."""


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds of its 95% interval. The bounds may lie unequally far from the mean."""

    mean: float
    low: float
    high: float


def estimate(cluster_means_P: Sequence[float]) -> Interval:
    """Wilson 95% interval of a mean over clusters whose values lie in 0 to 1; it stays in 0 to 1.

    The bounds are those of Wilson (1927), modified near 0 and 1 as in Brown, Cai and DasGupta, "Interval Estimation for
    a Binomial Proportion" (Statistical Science 16, 2001). Clusters that are not all 0 or 1 count as the number of 0/1
    observations that would have their variance, with Student's t on P - 1 degrees of freedom for the normal quantile,
    after Korn and Graubard (Survey Methodology 24, 1998). Equal values say nothing of the variance: then each cluster
    counts as one observation, so that none of 64 gives 0 to 0.057 and not 0 to 0.

    Exact coverage in percent, of P puzzles that are right or wrong with the chance p (by summing probabilities):

        P      p = 0.02   p = 0.3   p = 0.7
        8          99.0      94.2      94.2
        24         98.8      95.7      95.7
        64         96.1      94.4      94.4
        512        94.5      94.6      94.6

    Counts are discrete: of 8 and of 24 puzzles at 0.02 no interval without a random part lies nearer to 95 than 99.0
    (the next below is 85.1) and 91.7 or 98.8; there the cautious one is taken. `python -m tests.benchmarks.gate`
    prints the coverage of means of several samples a puzzle: within 1.5 of 95 but for rare successes, where it is
    higher. A heavy tail of rare, unlike clusters, of which a sample mostly holds none, is covered less: 82 to 93 for 24
    and 64 puzzles at 0.02 with 28 answers each and a correlation of 0.1 to 0.9 among them.

    Args:
        cluster_means_P: One mean a puzzle, [P], P >= 1, each in 0 to 1.

    Raises:
        ValueError: There is no value, or one lies outside 0 to 1.
    """
    values_P = np.asarray(cluster_means_P, dtype=np.float64)
    if not len(values_P) or not (values_P.min() >= 0.0 and values_P.max() <= 1.0):
        raise ValueError("an interval of shares takes at least one value, and values in 0 to 1")
    mean, size, quantile = float(values_P.mean()), float(len(values_P)), _Z95
    variance = float(values_P.var())
    if np.ptp(values_P) > _EQUAL and not np.isin(values_P, (0.0, 1.0)).all():
        size = (size - 1.0) * mean * (1.0 - mean) / variance
        quantile = t_quantile(_TAIL, len(values_P) - 1.0)
    low = _lower(mean, size, quantile)
    high = 1.0 - _lower(1.0 - mean, size, quantile)
    return Interval(mean, min(low, mean), max(high, mean))


def estimate_difference(differences_P: Sequence[float], chosen_of: int = 1) -> Interval:
    """Student's t 95% interval of a mean of paired differences, which lie in -1 to 1; it stays there.

    The variance counts one more difference of the typical size (see `variance_of_mean`), so that puzzles which all
    agree do not make the interval a point. Coverage is within 1.5 of 95 from 24 puzzles on, and higher with fewer, or
    where fewer than about ten puzzles differ.

    Args:
        differences_P: One difference a puzzle, [P], P >= 1.
        chosen_of: Number of equally noisy scores of which the subtracted one is the highest. Such a score is mostly a
            lucky one, so the true difference is higher than the measured one, which is given as it is: the upper bound
            is raised until it holds in spite of the choice (Dunnett's one-sided comparison of many with one, JASA 50,
            1955). It is exact where all the scores have one mean, and cautious elsewhere.
    """
    values_P = np.asarray(differences_P, dtype=np.float64)
    mean = float(values_P.mean())
    half = t_quantile(_TAIL, len(values_P)) * math.sqrt(float(variance_of_mean(values_P)))
    raised = half * chosen_quantile(chosen_of) / _Z95
    return Interval(mean, max(-1.0, mean - half), min(1.0, mean + raised))


def estimate_gain(
    results: pl.DataFrame, others: pl.DataFrame, *, mode: str, metric: str = "accuracy"
) -> Interval | None:
    """Returns the mean paired difference of two evaluations over the puzzles that both hold, with its 95% interval.

    Args:
        results: Rows of the `results` schema.
        others: Rows of the evaluation that is subtracted.
        mode: Completions to compare, `sampled` or `greedy`.
        metric: Column to compare, `accuracy` or `exact`.

    Returns:
        The interval of `estimate_difference`; None where the evaluations have no puzzle in common.
    """
    differences = paired_differences(puzzle_scores(results, mode, metric), puzzle_scores(others, mode, metric))
    return estimate_difference(differences) if differences else None


def puzzle_scores(results: pl.DataFrame, mode: str, metric: str) -> pl.DataFrame:
    """Returns the mean of a metric over each puzzle's completions: columns `puzzle_id` and `score`.

    Args:
        results: Rows of the `results` schema.
        mode: Completions to take, `sampled` or `greedy`.
        metric: Column to average, `accuracy` or `exact`.
    """
    chosen = results.filter(pl.col("mode") == mode)
    return chosen.group_by("puzzle_id", maintain_order=True).agg(pl.col(metric).cast(pl.Float64).mean().alias("score"))


def paired_differences(scores: pl.DataFrame, others: pl.DataFrame) -> list[float]:
    """Returns `scores` less `others`, [P], for each of the P puzzles that both hold.

    Args:
        scores: As `puzzle_scores` returns them.
        others: The scores that are subtracted.
    """
    paired = scores.join(others, on="puzzle_id", suffix="_other", maintain_order="left")
    return (paired["score"] - paired["score_other"]).to_list()


def standard_error(values_P: Sequence[float]) -> float:
    """Standard error of a mean, [P] values; 0 for a single one."""
    return float(np.std(values_P, ddof=1)) / math.sqrt(len(values_P)) if len(values_P) > 1 else 0.0


def variance_of_mean(differences_XP: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of the mean of paired differences, never 0: [..., P] -> [...]; with P degrees of freedom.

    Beside the P differences it counts one of typical size: the root mean square of those that are not 0, or 1 where
    all are. For differences of 1 and -1 that is nearly the pseudo-observation of Bonett and Price (Journal of
    Educational and Behavioral Statistics 37, 2012); for differences of one size it changes nothing.
    """
    count = differences_XP.shape[-1]
    squares_X, unequal_X = np.square(differences_XP).sum(axis=-1), np.count_nonzero(differences_XP, axis=-1)
    typical_X = np.where(unequal_X > 0, squares_X / np.maximum(unequal_X, 1), 1.0)
    return (differences_XP.var(axis=-1) * count + typical_X) / count**2


@lru_cache(maxsize=1024)
def chosen_quantile(number: int) -> float:
    """How far the highest of `number` scores lies above one more of the same mean, at most, with probability 97.5%.

    In standard errors of a difference of two scores; 1.96 where `number` is 1.
    """
    if number <= 1:
        return _Z95
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2.0
        below = [_NORMAL.cdf(math.sqrt(2.0) * middle + float(node)) ** number for node in nodes]
        if float(weights @ np.array(below)) / math.sqrt(2.0 * math.pi) < 1.0 - _TAIL:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _lower(share: float, size: float, quantile: float) -> float:
    successes = share * size
    spread = quantile * math.sqrt(successes * (1.0 - share) + quantile**2 / 4.0)
    low = max(0.0, (successes + quantile**2 / 2.0 - spread) / (size + quantile**2))
    few = next(most for largest, most in _FEW if size <= largest)
    if 0.0 < successes <= few + 1e-9:
        return min(low, beta_quantile(2.0 * _TAIL, successes, size - successes + 1.0))
    return low
