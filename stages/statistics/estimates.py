"""Means of clustered samples, and paired differences of evaluations, with 95% intervals.

Completions of one puzzle resemble each other, so the unit of the statistics is the puzzle, not the completion.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stages.statistics.beta import beta_quantile, t_quantile

_TAIL = 0.025  # probability on each side of a 95% interval
_NORMAL = NormalDist()
_Z95 = -_NORMAL.inv_cdf(_TAIL)
EQUAL = 1e-9  # smaller differences are due to rounding
_FEW_SUCCESSES = ((50.0, 2.0), (math.inf, 3.0))
"""Pairs (n, k): for sample sizes up to n, Wilson's bound is modified for counts up to k (Brown et al., 4.1.1)."""


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds of its 95% interval, which may be asymmetric."""

    mean: float
    low: float
    high: float


def estimate(cluster_means_P: Sequence[float]) -> Interval:
    """Returns Wilson's 95% interval of a mean over clusters with values in 0 to 1; the bounds lie in 0 to 1.

    The bounds are those of Wilson (1927), modified near 0 and 1 as in Brown, Cai and DasGupta, "Interval Estimation for
    a Binomial Proportion" (Statistical Science 16, 2001). If the values are not all 0 or 1, the sample size is the
    number of 0/1 observations that would have the same variance, and Student's t with P - 1 degrees of freedom replaces
    the normal quantile, after Korn and Graubard (Survey Methodology 24, 1998). Equal values contain no information
    about the variance; then each cluster counts as one observation, so that 0 of 64 gives 0 to 0.057 and not 0 to 0.

    Exact coverage in percent for P puzzles, each right with probability p (by summing probabilities):

        P      p = 0.02   p = 0.3   p = 0.7
        8          99.0      94.2      94.2
        24         98.8      95.7      95.7
        64         96.1      94.4      94.4
        512        94.5      94.6      94.6

    Counts are discrete, so no interval without a random part comes closer to 95: at 0.02 the possible coverages next to
    95 are 85.1 and 99.0 for 8 puzzles, 91.7 and 98.8 for 24; the higher one is taken. `python -m tests.benchmarks.gate`
    prints the coverage for means of several samples a puzzle: within 1.5 of 95, and higher for rare successes. The
    coverage is lower if a few clusters differ so much that the mean depends on them, but most samples contain none of
    them: 82 to 93 for 24 and 64 puzzles at 0.02 with 28 answers each and a correlation of 0.1 to 0.9 among them.

    Args:
        cluster_means_P: One mean for each puzzle, [P], P >= 1, each in 0 to 1.

    Raises:
        ValueError: There is no value, or one lies outside 0 to 1.
    """
    values_P = np.asarray(cluster_means_P, dtype=np.float64)
    if not len(values_P) or not (values_P.min() >= 0.0 and values_P.max() <= 1.0):
        raise ValueError("an interval of shares needs at least one value, and all values in 0 to 1")
    mean, size, quantile = float(values_P.mean()), float(len(values_P)), _Z95
    variance = float(values_P.var())
    if np.ptp(values_P) > EQUAL and not np.isin(values_P, (0.0, 1.0)).all():
        size = (size - 1.0) * mean * (1.0 - mean) / variance
        quantile = t_quantile(_TAIL, len(values_P) - 1.0)
    low = _lower(mean, size, quantile)
    high = 1.0 - _lower(1.0 - mean, size, quantile)
    return Interval(mean, min(low, mean), max(high, mean))


def estimate_mean(values_P: Sequence[float]) -> Interval:
    """Returns Student's t 95% interval of a mean of values of any size; a point if there is one value.

    Args:
        values_P: One value for each puzzle, [P], P >= 1.
    """
    mean = float(np.mean(values_P))
    half = t_quantile(_TAIL, len(values_P) - 1.0) * standard_error(values_P) if len(values_P) > 1 else 0.0
    return Interval(mean, mean - half, mean + half)


def estimate_difference(differences_P: Sequence[float], chosen_of: int = 1) -> Interval:
    """Returns Student's t 95% interval of a mean of paired differences in -1 to 1; the bounds lie in -1 to 1.

    The variance includes one more difference of typical size (see `variance_of_mean`), so that the interval is not a
    point if all puzzles agree. The coverage is within 1.5 of 95 from 24 puzzles on. It is higher with fewer puzzles, or
    if fewer than about ten puzzles differ.

    Args:
        differences_P: One difference for each puzzle, [P], P >= 1.
        chosen_of: Number of equally noisy scores; the subtracted one is the highest of them. The highest score is
            usually high by chance, so the true difference is higher than the measured one. The mean is left as
            measured; the upper bound is raised to correct for the choice (Dunnett's one-sided comparison of many with
            one, JASA 50, 1955). The raised bound is exact if all scores have the same mean, and conservative otherwise.
    """
    values_P = np.asarray(differences_P, dtype=np.float64)
    mean = float(values_P.mean())
    half = t_quantile(_TAIL, len(values_P)) * math.sqrt(float(variance_of_mean(values_P)))
    raised = half * chosen_quantile(chosen_of) / _Z95
    return Interval(mean, max(-1.0, mean - half), min(1.0, mean + raised))


def estimate_gain(
    results: pl.DataFrame, others: pl.DataFrame, *, mode: str, metric: str = "accuracy"
) -> Interval | None:
    """Returns the mean paired difference of two evaluations over their common puzzles, with its 95% interval.

    Args:
        results: Rows of the `results` schema.
        others: Rows of the evaluation that is subtracted.
        mode: Completions to compare, `sampled` or `greedy`.
        metric: Column to compare, `accuracy` or `exact`.

    Returns:
        The interval of `estimate_difference`; None if the evaluations have no puzzle in common.
    """
    differences = paired_differences(puzzle_scores(results, mode, metric), puzzle_scores(others, mode, metric))
    return estimate_difference(differences) if differences else None


def puzzle_scores(results: pl.DataFrame, mode: str, metric: str) -> pl.DataFrame:
    """Returns the mean of a metric over each puzzle's completions: columns `prompt_id` and `score`.

    Args:
        results: Rows of the `results` schema.
        mode: Completions to take, `sampled` or `greedy`.
        metric: Column to average, `accuracy` or `exact`.
    """
    chosen = results.filter(pl.col("mode") == mode)
    return chosen.group_by("prompt_id", maintain_order=True).agg(pl.col(metric).cast(pl.Float64).mean().alias("score"))


def paired_differences(scores: pl.DataFrame, others: pl.DataFrame) -> list[float]:
    """Returns `scores` minus `others` for each of the P puzzles that both contain, [P]; 0 where rounding differs only.

    Means of the same accuracies in another order differ in their last bits, and a difference that is not 0 counts as
    one (see `variance_of_mean`).

    Args:
        scores: As `puzzle_scores` returns them.
        others: The scores that are subtracted.
    """
    paired = scores.join(others, on="prompt_id", suffix="_other", maintain_order="left")
    differences = pl.col("score") - pl.col("score_other")
    return paired.select(pl.when(differences.abs() > EQUAL).then(differences).otherwise(0.0))["score"].to_list()


def standard_error(values_P: Sequence[float]) -> float:
    """Returns the standard error of the mean of [P] values; 0 for a single value."""
    return float(np.std(values_P, ddof=1)) / math.sqrt(len(values_P)) if len(values_P) > 1 else 0.0


def variance_of_mean(differences_XP: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the variance of the mean of paired differences, [..., P] -> [...], with P degrees of freedom; never 0.

    It includes one more difference of typical size: the root mean square of the differences that are not 0, or 1 if all
    are 0. For differences of 1 and -1 this is nearly the pseudo-observation of Bonett and Price (Journal of Educational
    and Behavioral Statistics 37, 2012). For differences of one size it changes nothing.
    """
    count = differences_XP.shape[-1]
    squares_X, unequal_X = np.square(differences_XP).sum(axis=-1), np.count_nonzero(differences_XP, axis=-1)
    typical_X = np.where(unequal_X > 0, squares_X / np.maximum(unequal_X, 1), 1.0)
    return (differences_XP.var(axis=-1) * count + typical_X) / count**2


@lru_cache(maxsize=1024)
def chosen_quantile(number: int) -> float:
    """Returns the 97.5% quantile of the highest of `number` scores minus one more score; all have the same mean.

    The unit is the standard error of a difference of two scores. The quantile is 1.96 if `number` is 1.
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
    """Returns Wilson's lower bound of a share of `size` observations, modified for few successes."""
    successes = share * size
    spread = quantile * math.sqrt(successes * (1.0 - share) + quantile**2 / 4.0)
    low = max(0.0, (successes + quantile**2 / 2.0 - spread) / (size + quantile**2))
    few = next(successes_limit for size_limit, successes_limit in _FEW_SUCCESSES if size <= size_limit)
    if 0.0 < successes <= few + 1e-9:
        return min(low, beta_quantile(2.0 * _TAIL, successes, size - successes + 1.0))
    return low
