"""The alarm rings where reward rises while accuracy falls, and seldom elsewhere."""

import numpy as np
import pytest

from flows.lookup.divergence import divergences
from stages.promotion.reward_alarm import RewardAlarm, alarm_bar, find_divergences
from stages.statistics.beta import t_quantile
from tests.support.diverging_curves import alarm_delays, false_alarms


def test_a_window_by_hand() -> None:
    """Halves of two: reward .1 .2 | .3 .4, accuracy .9 .8 | .7 .6; every difference is .1, so the noise is .1^2 / 2."""
    rewards, accuracies = np.array([[0.1, 0.2, 0.3, 0.4]]), np.array([[0.9, 0.8, 0.7, 0.6]])
    found = find_divergences(rewards, accuracies, RewardAlarm(window=4, standard_errors=1.0))
    assert found is not None
    assert (found.rise[0], found.fall[0]) == (pytest.approx(0.2), pytest.approx(0.2))
    # The standard error of a difference of two means of two is sqrt(.005 * 2 / 2) = .0707.
    assert (found.rise_se[0], found.fall_se[0]) == (pytest.approx(2.828427), pytest.approx(2.828427))
    assert found.bar == pytest.approx(t_quantile(0.158655, 2.0), rel=1e-4) and found.certain[0]
    opposite = find_divergences(accuracies, accuracies, RewardAlarm(window=4, standard_errors=1.0))
    assert opposite is not None and not opposite.certain[0], "both fall"
    assert find_divergences(rewards[:, :3], accuracies[:, :3], RewardAlarm(window=4)) is None


def test_curves_that_do_not_vary_raise_nothing() -> None:
    level = np.full((1, 30), 0.5)
    found = find_divergences(level, level, RewardAlarm(standard_errors=0.0))
    assert found is not None and not found.certain[0] and found.fall_se[0] == 0.0


def test_the_bar_rises_with_the_windows_so_far() -> None:
    rule = RewardAlarm()
    assert alarm_bar(rule, 98) < alarm_bar(rule, 600)
    assert alarm_bar(rule, 98) < alarm_bar(RewardAlarm(standard_errors=4.0), 98)


def test_level_accuracy_seldom_raises_an_alarm() -> None:
    """Reward rises all the time, or stays level too; `RewardAlarm.standard_errors` names the first share."""
    assert false_alarms(400, 98, RewardAlarm(), rises=True, seed=1) < 0.04
    assert false_alarms(400, 98, RewardAlarm(), rises=False, seed=1) < 0.005


def test_a_fall_of_ten_points_over_twenty_iterations_is_noticed() -> None:
    noticed = alarm_delays(200, 0.1, RewardAlarm(), seed=4)
    assert noticed["noticed"] > 0.9 and noticed["median"] <= 16
    assert alarm_delays(200, 0.1, RewardAlarm(), rises=False, seed=4)["noticed"] == 0.0, "reward falls as well"


def test_iterations_without_reward_or_accuracy_are_left_out() -> None:
    rule = RewardAlarm(window=4, standard_errors=1.0)
    points = [(0, None, 0.95), *((n, 0.1 * n, 1.0 - 0.1 * n) for n in (1, 2, 3)), (4, 0.35, None), (5, 0.4, 0.6)]
    found = divergences(points, rule)
    assert list(found) == [5] and (found[5].first, found[5].last, found[5].certain) == (1, 5, True)
    assert str(found[5]).startswith("reward rises while held-out accuracy falls: over iterations 1 to 5 reward +0.2 ")
    assert divergences(points, None) == {}
