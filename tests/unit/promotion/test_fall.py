"""A curve that stays level is seldom taken for a fallen one, and a fallen one soon."""

import math

import numpy as np
import pytest

from stages.promotion.fall import fall_bar, find_falls
from stages.promotion.gate import RollbackConfig
from stages.statistics.beta import beta_cdf, t_quantile
from tests.support.noisy_curves import draw_curves, first_rollbacks

NOISE = 0.03**2


def test_a_level_policy_seldom_goes_back() -> None:
    """98 candidates on 64 puzzles x 4 samples: against the highest score so far, 74% of such runs went back."""
    first_R = first_rollbacks(draw_curves(400, 98, seed=1), RollbackConfig())
    assert (first_R >= 0).mean() < 0.05


@pytest.mark.parametrize(("drop", "median", "within"), [(0.05, 6, 16), (0.1, 3, 5)])
def test_a_fall_is_soon_noticed(drop: float, median: int, within: int) -> None:
    """Delay in candidates, the first fallen one being 1, after 49 level ones."""
    delay_R = first_rollbacks(draw_curves(150, 75, drop=drop, drop_at=49, seed=2), RollbackConfig()) - 48
    noticed = delay_R[delay_R > 0]
    assert len(noticed) > 0.94 * len(delay_R), "the others are false alarms of before"
    assert np.median(noticed) <= median
    assert np.quantile(noticed, 0.95) <= within


def test_the_most_telling_drop_by_hand() -> None:
    scores = np.array([[0.5, 0.5, 0.5, 0.5, 0.2, 0.2, 0.2]])
    falls = find_falls(scores, np.full((1, 7), NOISE), 64, 2.0, 3)
    assert (falls.since[0], falls.before[0], falls.certain[0]) == (3, 4, True)
    assert falls.drop[0] == pytest.approx(0.3)
    assert falls.standard_errors[0] == pytest.approx(0.3 / math.sqrt(NOISE * (1 / 3 + 1 / 4)))


def test_the_fallen_stretch_is_long_enough_and_begins_after_the_highest_score() -> None:
    scores = np.array([[0.5] * 6 + [0.1, 0.1], [0.5] * 5 + [0.1, 0.1, 0.6]])
    falls = find_falls(scores, np.full(scores.shape, NOISE), 64, 2.0, 3)
    assert falls.since.tolist() == [3, 0], "of the second, the newest is the best: nothing has fallen since"
    assert find_falls(scores, np.full(scores.shape, NOISE), 64, 2.0, 2).since[0] == 2


def test_without_noise_known_nothing_is_said() -> None:
    assert not find_falls(np.array([[0.9]]), np.array([[np.nan]]), 64, 0.0, 1).certain[0]
    assert not find_falls(np.array([[0.9, 0.1]]), np.full((1, 2), np.nan), 64, 0.0, 1).certain[0]


def test_the_bar_rises_with_the_comparisons_and_with_what_is_asked() -> None:
    assert fall_bar(2.0, 2, 64) < fall_bar(2.0, 98, 64) < fall_bar(3.0, 98, 64)
    assert fall_bar(2.0, 98, 8) > fall_bar(2.0, 98, 10_000)


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (7, 2.36462), (63, 1.99834), (10**6, 1.95997)])
def test_quantiles_of_student_s_t(degrees: int, quantile: float) -> None:
    assert t_quantile(0.025, degrees) == pytest.approx(quantile, abs=1e-5)


def test_the_beta_distribution_sums_the_binomial() -> None:
    chance = sum(math.comb(9, x) * 0.3**x * 0.7 ** (9 - x) for x in range(4, 10))
    assert beta_cdf(4, 6, 0.3) == pytest.approx(chance, rel=1e-12)
    assert 1.0 - beta_cdf(6, 4, 0.7) == pytest.approx(chance, rel=1e-12)
    assert (beta_cdf(2, 3, 0.0), beta_cdf(2, 3, 1.0)) == (0.0, 1.0)
