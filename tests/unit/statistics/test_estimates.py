"""Intervals against numbers worked by hand, and how often they hold the true mean."""

import math

import numpy as np
import polars as pl
import pytest

from stages.statistics.estimates import (
    Interval,
    chosen_quantile,
    estimate,
    estimate_difference,
    paired_differences,
    puzzle_scores,
    standard_error,
    variance_of_mean,
)
from tests.support.noisy_curves import draw_curves

SIZES = (8, 24, 64, 512)
UNATTAINABLE = {(8, 0.02), (24, 0.02)}


def test_wilson_by_hand() -> None:
    # 3 of 10: (3 + z^2 / 2 -+ z sqrt(3 x 0.7 + z^2 / 4)) / (10 + z^2), but few successes have another lower bound.
    z = 1.959963984540054
    spread = z * math.sqrt(3 * 0.7 + z**2 / 4)
    interval = estimate([1.0] * 3 + [0.0] * 7)
    assert interval.low == pytest.approx((3 + z**2 / 2 - spread) / (10 + z**2))
    assert interval.high == pytest.approx((3 + z**2 / 2 + spread) / (10 + z**2))
    one = estimate([1.0] + [0.0] * 9)
    assert one.low == pytest.approx(1 - 0.95**0.1), "below it, one success or more of ten has less than 5%"


def test_means_count_as_the_observations_that_have_their_variance() -> None:
    # Mean 0.5; sample variance 0.5 / 3: (P - 1) 0.25 / (0.5 / 4) = 6 observations, and t of 3 degrees of freedom.
    t = 3.182446
    interval = estimate([0.0, 0.5, 0.5, 1.0])
    assert interval.mean == 0.5
    assert interval.high - 0.5 == pytest.approx(t * math.sqrt(6 * 0.25 + t**2 / 4) / (6 + t**2), abs=1e-6)
    assert 0.5 - interval.low == pytest.approx(interval.high - 0.5)


@pytest.mark.parametrize(
    "values", [[0.0] * 64, [1.0] * 64, [0.25] * 8, [0.3, 0.1 + 0.2], [0.25], [1.0], [0.0] * 63 + [0.25]]
)
def test_no_interval_of_shares_is_a_point_or_leaves_0_to_1(values: list[float]) -> None:
    interval = estimate(values)
    assert 0.0 <= interval.low <= interval.mean <= interval.high <= 1.0
    assert interval.high - interval.low > 0.02
    mirrored = estimate([1.0 - value for value in values])
    assert (mirrored.low, mirrored.high) == pytest.approx((1.0 - interval.high, 1.0 - interval.low))


def test_none_of_64_may_be_a_twentieth() -> None:
    assert estimate([0.0] * 64) == Interval(0.0, 0.0, pytest.approx(0.0566, abs=1e-4))


@pytest.mark.parametrize("values", [[], [-0.1, 0.5], [0.5, 1.1], [0.5, math.nan]])
def test_shares_lie_in_0_to_1(values: list[float]) -> None:
    with pytest.raises(ValueError, match="in 0 to 1"):
        estimate(values)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chance", [0.02, 0.3, 0.7])
def test_coverage_of_proportions_is_exact_where_counts_let_it(size: int, chance: float) -> None:
    """Summed over all counts. At two points no set of neighbouring counts has 93.5 to 96.5%: the next above counts."""
    weights = [math.comb(size, x) * chance**x * (1 - chance) ** (size - x) for x in range(size + 1)]
    intervals = [estimate([1.0] * x + [0.0] * (size - x)) for x in range(size + 1)]
    coverage = sum(weights[x] for x in range(size + 1) if intervals[x].low <= chance <= intervals[x].high)
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    reachable = np.subtract.outer(sums, sums).ravel()  # the probability of every set of neighbouring counts
    if (size, chance) in UNATTAINABLE:
        assert not ((reachable > 0.935) & (reachable < 0.965)).any()
        assert coverage == pytest.approx(reachable[reachable > 0.965].min(), abs=1e-9)
    else:
        assert coverage == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chance", [0.02, 0.3, 0.7])
def test_coverage_of_means_of_four_samples(size: int, chance: float) -> None:
    """Puzzles differ (intraclass correlation 0.3). Rare successes are as discrete as above: there it is higher."""
    rng = np.random.default_rng(size)
    rows = rng.binomial(4, rng.beta(chance * 7 / 3, (1 - chance) * 7 / 3, (2500, size))) / 4
    distinct, counts = np.unique(np.sort(rows, axis=1), axis=0, return_counts=True)
    intervals = [estimate(values) for values in distinct]
    inside = [interval.low <= chance <= interval.high for interval in intervals]
    coverage = float(np.average(inside, weights=counts))
    assert 0.935 < coverage < (0.99 if chance == 0.02 else 0.965)


def test_a_difference_by_hand() -> None:
    # Squares sum to 0.5 around the mean 0; one more of the typical size 0.25: variance of the mean 0.75 / 4^2.
    interval = estimate_difference([0.5, -0.5, 0.0, 0.0])
    assert interval.mean == 0.0
    assert interval.high == pytest.approx(2.776445 * math.sqrt(0.75 / 16), abs=1e-6)
    assert interval.low == pytest.approx(-interval.high)


@pytest.mark.parametrize("values", [[0.0] * 64, [0.25] * 8, [1.0] * 8, [-1.0], [0.0]])
def test_no_interval_of_a_difference_is_a_point_or_leaves_its_range(values: list[float]) -> None:
    interval = estimate_difference(values)
    assert -1.0 <= interval.low <= interval.mean <= interval.high <= 1.0
    assert interval.high - interval.low > 0.02


@pytest.mark.parametrize("size", SIZES)
def test_coverage_of_differences(size: int) -> None:
    """Means of four samples each, of policies that differ by 0.02 on average."""
    rng = np.random.default_rng(size)
    chances = rng.random((2000, size)) * 0.9
    others = chances + np.where(rng.random((2000, size)) < 0.2, 0.1, 0.0)
    rows = (rng.binomial(4, others) - rng.binomial(4, chances)) / 4
    inside = [(interval := estimate_difference(row)).low <= 0.02 <= interval.high for row in rows]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015 if size > 8 else 0.025)


def test_the_gain_over_the_highest_of_many_holds_in_spite_of_the_choice() -> None:
    """A policy that never changes, against its luckiest of 97: the plain interval excludes 0 in a third of cases."""
    shares = draw_curves(400, 98, seed=3)
    best = shares[np.arange(400), shares[:, :-1].mean(axis=2).argmax(axis=1)]
    rows = shares[:, -1] - best
    plain = [estimate_difference(row) for row in rows]
    mended = [estimate_difference(row, chosen_of=97) for row in rows]
    assert np.mean([interval.low <= 0.0 <= interval.high for interval in plain]) < 0.75
    assert np.mean([interval.low <= 0.0 <= interval.high for interval in mended]) > 0.95
    assert all(a.low == b.low and a.mean == b.mean for a, b in zip(plain, mended, strict=True))


@pytest.mark.parametrize("number", [1, 5, 97])
def test_the_quantile_of_a_choice_by_sampling(number: int) -> None:
    noise = np.random.default_rng(number).standard_normal((20_000, number + 1))
    apart = (noise[:, 1:].max(axis=1) - noise[:, 0]) / math.sqrt(2.0)
    assert np.mean(apart <= chosen_quantile(number)) == pytest.approx(0.975, abs=0.004)


def test_the_same_answers_in_another_order_differ_in_nothing() -> None:
    """Their means differ in the last bits; a difference that is not 0 would count as one puzzle of another result."""
    draw = np.random.default_rng(0)
    answers = draw.integers(0, 7, (64, 4)) / 6
    one, other = (
        puzzle_scores(
            pl.DataFrame({"prompt_id": np.repeat(np.arange(64), 4), "mode": "sampled", "accuracy": values.ravel()}),
            "sampled",
            "accuracy",
        )
        for values in (answers, draw.permuted(answers, axis=1))
    )
    assert (one["score"] != other["score"]).any()
    assert not any(paired_differences(one, other))


def test_standard_errors() -> None:
    assert standard_error([0.0, 0.5, 0.5, 1.0]) == pytest.approx(math.sqrt(0.5 / 3 / 4))
    assert standard_error([0.3]) == 0.0
    assert variance_of_mean(np.zeros((2, 64))).tolist() == [1 / 64**2] * 2
