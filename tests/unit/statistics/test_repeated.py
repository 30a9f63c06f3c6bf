"""Chances of several answers, by counting all choices of samples."""

from itertools import combinations

import numpy as np
import pytest

from stages.statistics.repeated import chance_all_right, chance_any_right


@pytest.mark.parametrize("k", [1, 2, 4])
def test_chances_are_those_of_all_choices(k: int) -> None:
    right = np.arange(5)
    for number, all_right, any_right in zip(
        right, chance_all_right(right, 4, k), chance_any_right(right, 4, k), strict=True
    ):
        choices = list(combinations([True] * number + [False] * (4 - number), k))
        assert all_right == pytest.approx(np.mean([all(choice) for choice in choices]))
        assert any_right == pytest.approx(np.mean([any(choice) for choice in choices]))
