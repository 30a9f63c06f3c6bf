"""Fits recover what synthetic curves were made from, and the published line of accuracy over cost."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flows.report.study.series import LearningCurve
from flows.report.study.study import _fit_row  # pyright: ignore[reportPrivateUsage]
from stages.statistics.estimates import estimate
from stages.statistics.fits import (
    FEWEST_POINTS,
    bootstrap_power_law,
    fit_frontier,
    fit_line,
    fit_power_law,
    frontier,
    power_law_slopes,
)
from tests.support.published_study import PUBLISHED_MODELS, draw_power_laws

ITERATIONS = list(range(1, 99))


def test_a_line_by_hand() -> None:
    line = fit_line([0.0, 1.0, 2.0], [1.0, 2.0, 4.0])
    assert (line.intercept, line.slope) == (pytest.approx(5 / 6), pytest.approx(1.5))
    assert line.r_squared == pytest.approx(1 - (1 / 6) / (14 / 3))
    assert line.at(2.0) == pytest.approx(23 / 6)
    assert fit_line([0.0, 1.0], [3.0, 3.0]).r_squared == 1.0
    with pytest.raises(ValueError, match="two different values"):
        fit_line([1.0, 1.0], [1.0, 2.0])


def test_a_power_law_without_noise_is_recovered_from_iteration_10_to_the_peak() -> None:
    curve = [0.283 * i**0.162 for i in range(1, 80)] + [0.2] * 19
    fit = fit_power_law(ITERATIONS, curve)
    assert fit is not None
    assert fit.slope == pytest.approx(0.162) and math.exp(fit.intercept) == pytest.approx(0.283)
    assert (fit.first, fit.last) == (10, 79), "what follows the peak of five iterations is left out"
    assert fit.residuals == pytest.approx([0.0] * 70, abs=1e-12)
    assert fit.at(98) == pytest.approx(0.283 * 98**0.162)


def test_the_peak_is_that_of_the_mean_of_five_iterations() -> None:
    curve = np.full(40, 0.5)
    curve[24] = 0.7  # a single high value is in five means; the last of them ends four iterations later
    curve[28] = 0.55
    fit = fit_power_law(list(range(40)), curve.tolist())
    assert fit is not None and fit.last == 28


@pytest.mark.parametrize(("slope", "start", "last"), [(0.162, 0.283, 98), (0.114, 0.367, 168)])
def test_slopes_are_recovered_from_noisy_curves(slope: float, start: float, last: int) -> None:
    """64 puzzles, two answers of seven letters each; 400 curves."""
    iterations, curves = draw_power_laws(400, slope, start, last, letters=7, seed=3)
    slopes, _ = power_law_slopes(iterations, curves)
    assert (np.abs(slopes - slope) <= 0.03).mean() >= 0.95


def test_curves_without_enough_points_have_no_fit() -> None:
    assert fit_power_law(ITERATIONS[: 9 + FEWEST_POINTS], [0.01 * i for i in ITERATIONS[: 9 + FEWEST_POINTS]])
    assert fit_power_law(ITERATIONS[: 8 + FEWEST_POINTS], [0.01 * i for i in ITERATIONS[: 8 + FEWEST_POINTS]]) is None
    assert fit_power_law([1, 2], [0.1, 0.2]) is None
    assert fit_power_law(ITERATIONS, [0.0] * 98) is None, "there is no logarithm of 0"


def test_a_curve_that_begins_late_has_a_fit() -> None:
    """It jumps to its level at once after iteration 971; exp(971 / scale) has no number for so short a scale."""
    numbers = list(range(971, 1001))
    fit = fit_power_law(numbers, [0.3, *(0.6 + 0.0001 * i for i in range(29))])
    assert fit is not None and fit.saturating.at(1000) == pytest.approx(0.6, abs=0.01)


def test_the_better_form_has_the_lower_criterion() -> None:
    """896 letters each time: a curve that levels off is told from a power law, and its parameters are found."""
    rng, numbers = np.random.default_rng(5), np.array(ITERATIONS)
    level_off = 0.7 - 0.45 * np.exp(-numbers / 30.0)
    exact = fit_power_law(ITERATIONS, level_off.tolist())
    assert exact is not None
    found = exact.saturating
    at_first = 0.45 * math.exp(-found.start / 30.0)
    assert (found.level, found.gap) == (pytest.approx(0.7, abs=0.002), pytest.approx(at_first, abs=0.005))
    assert found.scale == pytest.approx(30.0, rel=0.03) and found.at(98) == pytest.approx(level_off[-1], abs=1e-3)
    for curve, power_law_is_better in ((level_off, False), (0.283 * numbers**0.162, True)):
        fits = [fit_power_law(ITERATIONS, rng.binomial(896, curve) / 896) for _ in range(40)]
        better = np.mean([fit.aic < fit.saturating.aic for fit in fits if fit])
        assert (better > 0.5) == power_law_is_better


def test_the_interval_of_a_slope_holds_it() -> None:
    """64 puzzles of different difficulty; the interval of 95% holds the slope of 60 curves in most cases."""
    rng, held = np.random.default_rng(7), list[bool]()
    curve = 0.283 * np.array(ITERATIONS) ** 0.162
    for seed in range(60):
        chances = np.clip(2.0 * rng.beta(4, 4, (64, 1)) * curve, 0.0, 1.0)
        band = bootstrap_power_law(ITERATIONS, rng.binomial(14, chances) / 14, [10, 98], draws=200, seed=seed)
        assert band is not None and band.low[0] < band.high[0]
        held.append(band.slope.low <= 0.162 <= band.slope.high)
    assert np.mean(held) >= 0.85
    assert bootstrap_power_law([1, 2], np.full((4, 2), 0.5), [1]) is None


def test_the_frontier_beats_all_cheaper_models() -> None:
    assert frontier([3.0, 1.0, 2.0, 4.0], [0.5, 0.2, 0.6, 0.7]) == [1, 2, 3]
    assert frontier([1.0, 1.0, 2.0], [0.2, 0.3, 0.3]) == [1], "of equally cheap models the better; a tie beats nobody"
    assert fit_frontier([1.0, 2.0], [0.1, 0.2]) is None


def test_the_published_frontier_without_its_shift() -> None:
    """70.86 + 5.40 ln(cost); the published picture draws it 5.9 points higher."""
    line = fit_frontier([model.cost for model in PUBLISHED_MODELS], [model.accuracy for model in PUBLISHED_MODELS])
    assert line is not None
    assert line.intercept == pytest.approx(70.86, abs=0.01) and line.slope == pytest.approx(5.40, abs=0.005)
    assert line.r_squared == pytest.approx(0.963, abs=5e-4)
    costs, accuracies = zip(*((model.cost, model.accuracy) for model in PUBLISHED_MODELS), strict=True)
    names = [PUBLISHED_MODELS[index].name for index in frontier(costs, accuracies)]
    assert names == ["Qwen 14B", "Qwen 32B", "Sonnet 3.7", "o3-mini", "o3-mini high", "Sonnet 16k", "Sonnet 64k"]


@pytest.mark.parametrize(
    ("curve", "last", "shown"),
    [
        (lambda i: 0.3 * i**0.2, 40, True),
        (lambda i: 0.3 * i**0.2, 19, False),  # ten points, on logarithmic axes one spot
        (lambda i: 0.5 + 0.0 * i, 40, False),
        (lambda i: 0.6 - 0.002 * i, 40, False),  # it falls
    ],
)
def test_a_fit_is_shown_only_where_it_means_something(curve: Callable[[Any], Any], last: int, shown: bool) -> None:
    numbers, chance = np.arange(1, last + 1), np.random.default_rng(5)
    scores = chance.binomial(7, np.tile(curve(numbers), (64, 1))) / 7
    made = LearningCurve(numbers.tolist(), [estimate(column.tolist()) for column in scores.T], scores, [], [])
    assert (made.power_law() is not None) == shown


def test_a_level_is_shown_only_if_accuracy_can_reach_it() -> None:
    """A straight line never levels off: its best curve has a level far above 100%."""
    straight = fit_power_law(ITERATIONS, [0.2 + 0.006 * i for i in ITERATIONS])
    assert straight is not None and straight.saturating.level > 1.0 and not straight.saturating.is_plausible
    levels = fit_power_law(ITERATIONS, [0.7 - 0.4 * math.exp(-i / 20) for i in ITERATIONS])
    assert levels is not None and levels.saturating.is_plausible
    shown = [_fit_row("run", fit, None) for fit in (straight, levels)]
    assert shown[0][-2:] == ["", ""] and shown[1][-1] == "70.0%"
