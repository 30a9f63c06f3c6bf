"""Advantages against numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.grpo.advantages import AdvantageConfig, group_advantages

REWARDS = np.array([1.0, 0.5, 0.5, 0.0])  # mean 0.5; population variance 0.125; sample variance 1/6


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("none", [0.5, 0.0, 0.0, -0.5]),
        ("population_std", [1.4142135624, 0.0, 0.0, -1.4142135624]),  # 0.5 / sqrt(0.125)
        ("sample_std", [1.2247448714, 0.0, 0.0, -1.2247448714]),  # 0.5 / sqrt(1/6)
    ],
)
def test_scales_by_hand(scale: str, expected: list[float]) -> None:
    config = AdvantageConfig.model_validate({"scale": scale, "epsilon": 0.0})
    assert group_advantages(REWARDS, config) == pytest.approx(expected, abs=1e-9)


def test_epsilon_is_added_to_the_deviation() -> None:
    advantages = group_advantages(np.array([1.0, 0.0]), AdvantageConfig(scale="population_std", epsilon=0.5))
    assert advantages == pytest.approx([0.5, -0.5])  # 0.5 / (0.5 + 0.5)


@pytest.mark.parametrize("fraction", [1 / 5, 1 / 6, 3 / 7, 0.1])
def test_equal_fractions_leave_no_residue(fraction: float) -> None:
    # The mean of 50 equal fractions is off by an ulp: without a tolerance the group would pass for a signal.
    assert not group_advantages(np.full(50, fraction), AdvantageConfig()).any()


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=64), st.sampled_from(["population_std", "sample_std", "none"]))
def test_advantages_are_centred_and_keep_order(rewards: list[float], scale: str) -> None:
    values = np.array(rewards)
    advantages = group_advantages(values, AdvantageConfig.model_validate({"scale": scale}))
    assert abs(advantages.mean()) < 1e-6
    if advantages.any():
        assert list(np.argsort(advantages, kind="stable")) == list(np.argsort(values - values.mean(), kind="stable"))
