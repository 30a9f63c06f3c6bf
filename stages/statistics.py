"""Means of clustered samples with their intervals.

Completions of one puzzle resemble each other, so the puzzle, not the completion, is the unit that is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution


@dataclass(frozen=True)
class Estimate:
    """A mean with the bounds of its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def standard_error(self) -> float:
        """Standard error of the mean."""
        return (self.high - self.mean) / _Z95


def estimate(cluster_means_P: Sequence[float]) -> Estimate:
    """Normal 95% interval of a mean over clusters.

    Args:
        cluster_means_P: One mean a puzzle, [P], P >= 1. With one puzzle the interval is the point itself.
    """
    values_P = np.asarray(cluster_means_P, dtype=np.float64)
    mean = float(values_P.mean())
    half = _Z95 * float(values_P.std(ddof=1)) / math.sqrt(len(values_P)) if len(values_P) > 1 else 0.0
    return Estimate(mean, mean - half, mean + half)
