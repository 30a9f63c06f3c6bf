"""The alarm rings where reward rises while accuracy falls, and seldom elsewhere."""

import pytest

from stages.promotion.reward_alarm import AlarmWindow, RewardAlarm, alarm_bar, alarm_windows
from stages.statistics.beta import t_quantile
from tests.support.alarm_curves import alarm_delays, false_alarms


def window(rewards: list[float], accuracies: list[float], rule: RewardAlarm) -> AlarmWindow:
    points = zip(range(1, len(rewards) + 1), rewards, accuracies, strict=True)
    return alarm_windows(points, rule)[len(rewards)]


def test_a_window_by_hand() -> None:
    """Halves of two: reward .1 .2 | .3 .4, accuracy .9 .8 | .7 .6; every difference is .1, so the noise is .1^2 / 2."""
    rewards, accuracies = [0.1, 0.2, 0.3, 0.4], [0.9, 0.8, 0.7, 0.6]
    rule = RewardAlarm(window=4, standard_errors=1.0)
    found = window(rewards, accuracies, rule)
    assert (found.first, found.last, found.rise, found.fall) == (1, 4, pytest.approx(0.2), pytest.approx(0.2))
    # The standard error of a difference of two means of two is sqrt(.005 * 2 / 2) = .0707.
    assert (found.rise_se, found.fall_se) == (pytest.approx(2.828427), pytest.approx(2.828427))
    assert found.bar == pytest.approx(t_quantile(0.158655, 2.0), rel=1e-4) and found.certain
    assert not window(accuracies, accuracies, rule).certain, "both fall"


def test_curves_that_do_not_vary_raise_nothing() -> None:
    found = window([0.5] * 30, [0.5] * 30, RewardAlarm(standard_errors=0.0))
    assert not found.certain and found.fall_se == 0.0


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
    found = alarm_windows(points, rule)
    assert list(found) == [5] and (found[5].first, found[5].last, found[5].certain) == (1, 5, True)
    assert str(found[5]).startswith("reward rises while held-out accuracy falls: over iterations 1 to 5 reward +0.2 ")
    assert alarm_windows(points, None) == {}
