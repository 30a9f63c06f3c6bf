"""Fits of learning curves and of accuracy over cost, by least squares.

The power law of a learning curve is fitted by the rule of OpenPipe's Temporal Clue study (`067-charts.ipynb` of
OpenPipe/rl-experiments): ordinary least squares of ln(accuracy) on ln(iteration), from iteration 10 to the peak of the
mean over five iterations. The study draws its line of accuracy over cost 5.9 points above the fit; this one is the fit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.statistics.estimates import Interval

FIRST_ITERATION, ROLLING = 10, 5
"""First iteration of the fit, and length in iterations of the running mean at whose peak the fit ends."""
FEWEST_POINTS = 8
"""Number of points below which a learning curve gets no fit."""
LEAST_SPAN = 2.0
"""Smallest ratio of last to first fitted iteration; below it the points are too close on logarithmic axes for a fit."""
_SCALES = 80
_GAUSS_NEWTON_STEPS = 12


@dataclass(frozen=True)
class Line:
    """A straight line by least squares.

    Attributes:
        intercept: Its value at 0.
        slope: Its change for each unit.
        r_squared: Share of the variance that it explains; 1 if the values do not vary.
    """

    intercept: float
    slope: float
    r_squared: float

    def at(self, x: float) -> float:
        """Returns the value of the line at `x`."""
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Returns the least-squares line of `y` over `x`.

    Raises:
        ValueError: There are fewer than two different values of `x`.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(xs) < 2 or np.ptp(xs) == 0.0:
        raise ValueError("a line needs two different values of x")
    slope, intercept = _lines(xs[None, :], ys[None, :], np.ones((1, len(xs))))
    total = float(np.square(ys - ys.mean()).sum())
    left = float(np.square(ys - intercept[0] - slope[0] * xs).sum())
    return Line(float(intercept[0]), float(slope[0]), 1.0 - left / total if total else 1.0)


@dataclass(frozen=True)
class PowerLaw:
    """The fit `accuracy = exp(intercept) * iteration ** slope` of a learning curve.

    Attributes:
        slope: The exponent.
        intercept: ln(accuracy) at iteration 1.
        iterations: The iterations of the fitted points; the last is that of the peak.
        residuals: ln(accuracy) minus the fit, for each of them.
        aic: Akaike's criterion of the fit; lower is better. It compares fits of the same points.
        saturating: A curve that levels off, fitted to the same points.
    """

    slope: float
    intercept: float
    iterations: tuple[int, ...]
    residuals: tuple[float, ...]
    aic: float
    saturating: "Saturating"

    @property
    def first(self) -> int:
        """First fitted iteration."""
        return self.iterations[0]

    @property
    def last(self) -> int:
        """Last fitted iteration."""
        return self.iterations[-1]

    def at(self, iteration: float) -> float:
        """Returns the accuracy that the fit gives for an iteration, 1 or later."""
        return math.exp(self.intercept) * iteration**self.slope


@dataclass(frozen=True)
class Saturating:
    """The fit `accuracy = level - gap * exp(-(iteration - start) / scale)` of a learning curve.

    Attributes:
        level: The accuracy that the curve approaches.
        gap: Difference between the level and the accuracy at `start`.
        start: The first fitted iteration.
        scale: Iterations in which the distance to the level falls to 37%.
        aic: Akaike's criterion, as in `PowerLaw`.
    """

    level: float
    gap: float
    start: float
    scale: float
    aic: float

    @property
    def is_plausible(self) -> bool:
        """Whether the curve rises to a level that accuracy can reach."""
        return self.gap > 0.0 and 0.0 < self.level <= 1.0

    def at(self, iteration: float) -> float:
        """Returns the accuracy that the fit gives for an iteration."""
        return self.level - self.gap * math.exp(-(iteration - self.start) / self.scale)


def fit_power_law(iterations: Sequence[int], accuracies: Sequence[float]) -> PowerLaw | None:
    """Returns the power law of a learning curve up to its peak, beside a curve that levels off.

    Args:
        iterations: Numbers of iterations, ascending, [N].
        accuracies: Held-out accuracy after each, in 0 to 1, [N].

    Returns:
        The fit; None if there are fewer than `FEWEST_POINTS` points with an accuracy above 0 up to the peak.
    """
    numbers_N, curve_N = np.asarray(iterations, dtype=np.int64), np.asarray(accuracies, dtype=np.float64)
    mask_N = _fitted_points(numbers_N, curve_N[None, :])[0]
    if mask_N.sum() < FEWEST_POINTS:
        return None
    slope, intercept = power_law_slopes(numbers_N, curve_N[None, :])
    numbers, logs = numbers_N[mask_N].astype(np.float64), np.log(curve_N[mask_N])
    residuals = logs - intercept[0] - slope[0] * np.log(numbers)
    return PowerLaw(
        slope=float(slope[0]),
        intercept=float(intercept[0]),
        iterations=tuple(int(number) for number in numbers),
        residuals=tuple(float(value) for value in residuals),
        aic=_aic(float(np.square(residuals).sum()), len(residuals), parameters=3),
        saturating=_fit_saturating(numbers, logs),
    )


def power_law_slopes(
    iterations_N: NDArray[np.int64], accuracies_RN: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the slopes and intercepts of the power laws of R curves, each up to its own peak, both [R].

    Curves with fewer than `FEWEST_POINTS` points up to the peak get NaN.

    Args:
        iterations_N: Numbers of iterations, ascending, [N].
        accuracies_RN: Accuracy of each curve after each iteration, in 0 to 1, [R, N].
    """
    mask_RN = _fitted_points(iterations_N, accuracies_RN)
    logs_RN = np.log(np.where(mask_RN, accuracies_RN, 1.0))
    ln_iterations_1N = np.log(np.maximum(iterations_N, 1))[None, :]
    slope_R, intercept_R = _lines(ln_iterations_1N, logs_RN, mask_RN.astype(np.float64))
    few_R = mask_RN.sum(axis=1) < FEWEST_POINTS
    return np.where(few_R, np.nan, slope_R), np.where(few_R, np.nan, intercept_R)


@dataclass(frozen=True)
class PowerLawBand:
    """The 95% interval of a power law, by resampling puzzles.

    Attributes:
        slope: The slope with its interval.
        low: Lower bounds of the fit's accuracy at the requested iterations.
        high: Upper bounds.
    """

    slope: Interval
    low: tuple[float, ...]
    high: tuple[float, ...]


def bootstrap_power_law(
    iterations: Sequence[int],
    scores_PN: NDArray[np.float64],
    at: Sequence[float],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> PowerLawBand | None:
    """Returns the 95% percentile interval of a power law when puzzles are drawn with replacement.

    All points of a learning curve answer the same puzzles, so puzzles are the unit that is drawn. Each draw finds a
    peak of its own.

    Args:
        iterations: Numbers of iterations, ascending, [N].
        scores_PN: Mean accuracy of each puzzle after each iteration, [P, N].
        at: Iterations at which the bounds of the fit are returned, 1 or later.
        draws: Number of draws.
        seed: Seed of the draws.

    Returns:
        The interval; None if the curve itself has no fit, or if a fifth of the draws has none.
    """
    numbers_N = np.asarray(iterations, dtype=np.int64)
    slope, _ = power_law_slopes(numbers_N, scores_PN.mean(axis=0, keepdims=True))
    puzzles = len(scores_PN)
    counts_DP = np.random.default_rng(seed).multinomial(puzzles, np.full(puzzles, 1.0 / puzzles), size=draws)
    slopes_D, intercepts_D = power_law_slopes(numbers_N, counts_DP @ scores_PN / puzzles)
    fitted_D = np.isfinite(slopes_D)
    if not np.isfinite(slope[0]) or fitted_D.mean() <= 0.8:
        return None
    slopes_D, intercepts_D = slopes_D[fitted_D], intercepts_D[fitted_D]
    low, high = np.quantile(slopes_D, (0.025, 0.975))
    values_DA = np.exp(intercepts_D[:, None] + slopes_D[:, None] * np.log(np.asarray(at, dtype=np.float64)))
    band = np.quantile(values_DA, (0.025, 0.975), axis=0)
    return PowerLawBand(Interval(float(slope[0]), float(low), float(high)), tuple(band[0]), tuple(band[1]))


def means_something(fit: PowerLaw, band: PowerLawBand | None) -> bool:
    """Returns whether a power law is meaningful for a learning curve, so that views show it.

    Its points must span a factor of `LEAST_SPAN` in iterations, the 95% interval of its slope must be above 0 (the fit
    ends at the peak, so a slope that vanishes when puzzles are resampled is noise), and it must not give an accuracy
    above 1.
    """
    if band is None or fit.last < LEAST_SPAN * fit.first:
        return False
    return band.slope.low > 0.0 and fit.at(fit.last) <= 1.0


def frontier(costs: Sequence[float], accuracies: Sequence[float]) -> list[int]:
    """Returns the indices of the models that beat all cheaper ones, from the cheapest.

    Of equally cheap models only the most accurate can be on the frontier.

    Args:
        costs: Cost of an answer, any unit.
        accuracies: Accuracy of each model.
    """
    best, chosen = -math.inf, list[int]()
    for index in sorted(range(len(costs)), key=lambda i: (costs[i], -accuracies[i])):
        if accuracies[index] > best:
            best = accuracies[index]
            chosen.append(index)
    return chosen


def fit_frontier(costs: Sequence[float], accuracies: Sequence[float]) -> Line | None:
    """Returns the line `accuracy = a + b ln(cost)` through the frontier, not shifted.

    Returns:
        The line; None if fewer than three models are on the frontier.
    """
    chosen = frontier(costs, accuracies)
    if len(chosen) < 3:
        return None
    return fit_line([math.log(costs[i]) for i in chosen], [accuracies[i] for i in chosen])


def _fitted_points(iterations_N: NDArray[np.int64], accuracies_RN: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns the points of each curve to which the power law is fitted, bool [R, N]."""
    curves, count = accuracies_RN.shape
    if count < ROLLING:
        return np.zeros((curves, count), dtype=np.bool_)
    sums = np.concatenate([np.zeros((curves, 1)), accuracies_RN.cumsum(axis=1)], axis=1)
    peak_R = (sums[:, ROLLING:] - sums[:, :-ROLLING]).argmax(axis=1) + ROLLING - 1
    return (
        (np.arange(count) <= peak_R[:, None])
        & (iterations_N >= FIRST_ITERATION)
        & (accuracies_RN > 0.0)  # a logarithm exists
    )


def _lines(
    x_RN: NDArray[np.float64], y_RN: NDArray[np.float64], weights_RN: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns slopes and intercepts of R weighted least-squares lines, both [R]; NaN where x does not vary."""
    total_R = np.maximum(weights_RN.sum(axis=1), 1e-300)
    x_mean_R = (weights_RN * x_RN).sum(axis=1) / total_R
    y_mean_R = (weights_RN * y_RN).sum(axis=1) / total_R
    from_mean_RN = x_RN - x_mean_R[:, None]
    squares_R = (weights_RN * np.square(from_mean_RN)).sum(axis=1)
    products_R = (weights_RN * from_mean_RN * y_RN).sum(axis=1)
    slope_R = np.divide(products_R, squares_R, out=np.full(len(y_RN), np.nan), where=squares_R > 0.0)
    return slope_R, y_mean_R - slope_R * x_mean_R


def _fit_saturating(numbers_N: NDArray[np.float64], logs_N: NDArray[np.float64]) -> Saturating:
    """Fits the curve that levels off to ln(accuracy), as the power law is fitted, so that their criteria compare.

    For a given scale the accuracy is linear in level and gap, so each of `_SCALES` scales is fitted by Gauss-Newton
    steps in ln(accuracy); each step is a weighted line. The best scale is taken.
    """
    length = float(numbers_N[-1] - numbers_N[0])
    scales_S = np.geomspace(length / 50.0, length * 10.0, _SCALES)
    decay_SN = np.exp(-(numbers_N - numbers_N[0]) / scales_S[:, None])
    floor = math.exp(float(logs_N.min())) / 10.0
    value_SN = np.broadcast_to(np.exp(logs_N), decay_SN.shape)
    squares, best = math.inf, (0.0, 0.0, 1.0)
    for _ in range(_GAUSS_NEWTON_STEPS):
        linear_SN = value_SN * (1.0 + logs_N - np.log(value_SN))
        slope_S, level_S = _lines(decay_SN, linear_SN, 1.0 / np.square(value_SN))
        value_SN = np.maximum(level_S[:, None] + slope_S[:, None] * decay_SN, floor)
        squares_S = np.square(logs_N - np.log(value_SN)).sum(axis=1)
        i = int(squares_S.argmin())
        if squares_S[i] < squares:
            squares, best = float(squares_S[i]), (float(level_S[i]), -float(slope_S[i]), float(scales_S[i]))
    level, gap, scale = best
    return Saturating(level, gap, float(numbers_N[0]), scale, _aic(squares, len(numbers_N), parameters=4))


def _aic(squares: float, count: int, parameters: int) -> float:
    """Returns Akaike's criterion of a least-squares fit; the variance counts as a parameter."""
    return count * math.log(max(squares, 1e-300) / count) + 2.0 * parameters
