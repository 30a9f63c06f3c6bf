"""The incomplete beta function, and quantiles computed from it: those of beta and of Student's t."""

import math
from functools import lru_cache

_TINY = 1e-300


def beta_cdf(a: float, b: float, x: float) -> float:
    """Returns the probability that a Beta(a, b) variable is at most x, by Lentz's continued fraction (DLMF 8.17.22).

    Args:
        a: First parameter, above 0.
        b: Second parameter, above 0.
        x: Any number.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_cdf(b, a, 1.0 - x)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / a * _fraction(a, b, x)


@lru_cache(maxsize=4096)
def beta_quantile(probability: float, a: float, b: float) -> float:
    """Returns the x below which a Beta(a, b) variable lies with a probability (bisection, 80 steps)."""
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2.0
        if beta_cdf(a, b, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


@lru_cache(maxsize=4096)
def t_quantile(upper_tail: float, degrees_of_freedom: float) -> float:
    """Returns the value that Student's t exceeds with a probability.

    Args:
        upper_tail: The probability, above 0 and at most 0.5.
        degrees_of_freedom: Above 0.
    """
    x = beta_quantile(2.0 * upper_tail, degrees_of_freedom / 2.0, 0.5)
    return math.sqrt(degrees_of_freedom * (1.0 - x) / x)


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, 2000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 / _nonzero(1.0 + term * d), _nonzero(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
