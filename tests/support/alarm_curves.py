"""Rewards and held-out accuracies of simulated runs, and the alarms that they raise."""

import numpy as np
from numpy.typing import NDArray

from stages.promotion.reward_alarm import RewardAlarm, alarm_bar, window_change

ACCURACY_NOISE, REWARD_NOISE = 0.0255, 0.03
"""Standard deviations; that of accuracy is of 64 puzzles x 4 samples whose chances are uniform."""
FALL_AT, FALL_LENGTH = 49, 20


def first_alarms(
    rewards_RN: NDArray[np.float64], accuracies_RN: NDArray[np.float64], rule: RewardAlarm
) -> NDArray[np.int64]:
    """Returns the number of iterations after which each run first raises an alarm, -1 if it never does: [R]."""
    first_R = np.full(len(rewards_RN), -1)
    for count in range(rule.window, rewards_RN.shape[1] + 1):
        bar = alarm_bar(rule, count)
        _, rise_R = window_change(rewards_RN[:, :count], rule.window)
        _, gain_R = window_change(accuracies_RN[:, :count], rule.window)
        first_R[(first_R < 0) & (rise_R > bar) & (-gain_R > bar)] = count
    return first_R


def false_alarms(runs: int, iterations: int, rule: RewardAlarm, *, rises: bool, seed: int) -> float:
    """Returns the share of runs that raise an alarm although accuracy stays level; reward rises or stays level."""
    rng = np.random.default_rng(seed)
    accuracies = 0.5 + ACCURACY_NOISE * rng.standard_normal((runs, iterations))
    trend = np.linspace(0.0, 1.0, iterations) if rises else np.zeros(iterations)
    rewards = trend + REWARD_NOISE * rng.standard_normal((runs, iterations))
    return float((first_alarms(rewards, accuracies, rule) > 0).mean())


def alarm_delays(runs: int, fall: float, rule: RewardAlarm, *, rises: bool = True, seed: int) -> dict[str, float]:
    """Returns how soon a fall of accuracy by `fall`, over 20 iterations from the 50th of 98, raises an alarm.

    Returns:
        The share of runs that notice it, and the median number of iterations until then (0 if none does).
    """
    rng, iterations = np.random.default_rng(seed), 98
    level = 0.5 - fall * np.clip((np.arange(iterations) - FALL_AT + 1) / FALL_LENGTH, 0.0, 1.0)
    accuracies = level + ACCURACY_NOISE * rng.standard_normal((runs, iterations))
    trend = np.linspace(0.0, 1.0, iterations)
    rewards = (trend if rises else trend[::-1]) + REWARD_NOISE * rng.standard_normal((runs, iterations))
    first = first_alarms(rewards, accuracies, rule)
    delays = first[first > FALL_AT] - FALL_AT
    return {"noticed": len(delays) / runs, "median": float(np.median(delays)) if len(delays) else 0.0}
