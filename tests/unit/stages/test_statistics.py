"""Intervals against numbers worked by hand."""

import pytest

from stages.statistics import estimate


def test_interval_by_hand() -> None:
    # Mean 0.5; sample variance (0.25 + 0 + 0 + 0.25) / 3; standard error sqrt(variance / 4); half width 1.96 of it.
    values = [0.0, 0.5, 0.5, 1.0]
    deviation = (0.5 / 3) ** 0.5
    found = estimate(values)
    assert found.mean == 0.5
    assert found.high - found.mean == pytest.approx(1.959964 * deviation / 2, abs=1e-6)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_one_puzzle_has_no_interval() -> None:
    assert estimate([0.25]) == estimate([0.25]).__class__(0.25, 0.25, 0.25)
