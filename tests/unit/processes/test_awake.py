"""Limits on silence count the time for which this process was awake."""

import time

import pytest

from stages.processes.awake import LONGEST_GAP_S, AwakeClock, LastProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that `time.monotonic` returns, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_long_gap_between_two_looks_was_spent_asleep(clock: list[float]) -> None:
    awake = AwakeClock()
    clock[0] += LONGEST_GAP_S
    assert (awake.look(), awake.asleep_s) == (LONGEST_GAP_S, 0.0)
    clock[0] += 3600.0
    assert (awake.look(), awake.asleep_s) == (LONGEST_GAP_S, 3600.0)
    clock[0] += 1.0
    assert awake.look() == LONGEST_GAP_S + 1.0


def test_only_a_change_is_progress(clock: list[float]) -> None:
    progress = LastProgress()
    progress.observe({"tokens": 1})
    clock[0] += 3.0
    assert progress.age_s == 3.0
    progress.observe({"tokens": 1})
    clock[0] += 2.0
    assert progress.age_s == 5.0
    progress.observe({"tokens": 2})
    assert progress.age_s == 0.0
