"""Advantages against numbers worked by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stages.grpo.advantages import AdvantageConfig, batch_advantages

REWARDS = np.array([1.0, 0.5, 0.5, 0.0])  # mean 0.5; population variance 0.125; sample variance 1/6
OTHER = np.array([1.0, 1.0])


def of_one(rewards: Any, **config: Any) -> Any:
    (advantages,) = batch_advantages([np.array(rewards, dtype=np.float64)], AdvantageConfig(**config))
    return advantages


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("none", [0.5, 0.0, 0.0, -0.5]),
        ("population_std", [1.4142135624, 0.0, 0.0, -1.4142135624]),  # 0.5 / sqrt(0.125)
        ("sample_std", [1.2247448714, 0.0, 0.0, -1.2247448714]),  # 0.5 / sqrt(1/6)
    ],
)
def test_scales_by_hand(scale: str, expected: list[float]) -> None:
    assert of_one(REWARDS, scale=scale, epsilon=0.0) == pytest.approx(expected, abs=1e-9)


def test_the_batch_deviation_is_shared_by_its_groups() -> None:
    # Rewards 1 0 | 1 0.5 0.5 0: mean 0.5, squares 4 x 0.25 = 1, over 5: deviation sqrt(0.2).
    config = AdvantageConfig(scale="batch_std", epsilon=0.0)
    first, second = batch_advantages([np.array([1.0, 0.0]), REWARDS], config)
    assert first == pytest.approx([1.1180339887, -1.1180339887])
    assert second == pytest.approx([1.1180339887, 0.0, 0.0, -1.1180339887])


def test_uniform_groups_have_no_advantage_but_count_in_the_batch_deviation() -> None:
    # Rewards 1 0 | 1 1: mean 0.75, squares 3/16 + 9/16 = 0.75, over 3: deviation 0.5.
    first, second = batch_advantages([np.array([1.0, 0.0]), OTHER], AdvantageConfig(scale="batch_std", epsilon=0.0))
    assert first == pytest.approx([1.0, -1.0])
    assert second.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ([1.0] + [0.0] * 63, [1.0] + [-1 / 63] * 63),
        ([0.75, 0.25], [0.5, -0.5]),
    ],
)
def test_leave_one_out(rewards: list[float], expected: list[float]) -> None:
    assert of_one(rewards, baseline="leave_one_out", scale="none") == pytest.approx(expected)


def test_the_mean_of_the_batch_serves_groups_of_one_completion() -> None:
    """Rewards 1, 0, 0.5 and 0.5: mean 0.5. The deviation over 3 is sqrt(0.5 / 3)."""
    groups = [np.array([reward]) for reward in (1.0, 0.0, 0.5, 0.5)]
    plain = batch_advantages(groups, AdvantageConfig(baseline="batch_mean", scale="none"))
    assert np.concatenate(plain).tolist() == [0.5, -0.5, 0.0, 0.0]
    scaled = batch_advantages(groups, AdvantageConfig(baseline="batch_mean", scale="batch_std", epsilon=0.0))
    assert np.concatenate(scaled) == pytest.approx([1.2247448714, -1.2247448714, 0.0, 0.0])
    with pytest.raises(ValueError, match="it goes with scale batch_std or none"):
        AdvantageConfig(baseline="batch_mean", scale="population_std")


@pytest.mark.parametrize("groups", [[[], [0.5], []], [[0.0], [0.0], [0.0]], [[0.1] * 3, [0.1] * 3]])
def test_a_batch_of_equal_rewards_has_no_advantages(groups: list[list[float]]) -> None:
    """Such as that of the only completion that ended, where others are masked: the deviation over N - 1 is 0 / 0."""
    config = AdvantageConfig(baseline="batch_mean", scale="batch_std", epsilon=0.0)
    advantages = batch_advantages([np.array(rewards) for rewards in groups], config)
    assert [values.tolist() for values in advantages] == [[0.0] * len(rewards) for rewards in groups]


def test_one_completion_or_none_is_no_group() -> None:
    for baseline in ("group_mean", "leave_one_out"):
        assert of_one([1.0], baseline=baseline).tolist() == [0.0]
        assert of_one([], baseline=baseline).tolist() == []


def test_epsilon_is_added_to_the_deviation() -> None:
    assert of_one([1.0, 0.0], scale="population_std", epsilon=0.5) == pytest.approx([0.5, -0.5])  # 0.5 / (0.5 + 0.5)


@pytest.mark.parametrize("fraction", [1 / 5, 1 / 6, 3 / 7, 0.1])
def test_equal_fractions_leave_no_residue(fraction: float) -> None:
    # The mean of 50 equal fractions is off by an ulp: without a tolerance the group would pass for a signal.
    assert not of_one([fraction] * 50).any()


SCALES = st.sampled_from(["population_std", "sample_std", "batch_std", "none"])


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=64), SCALES, st.sampled_from(["group_mean", "leave_one_out"]))
@example([0.0, 4.0, -2.220446049250313e-16], "population_std", "leave_one_out")
def test_advantages_are_centred_and_keep_order(rewards: list[float], scale: str, baseline: str) -> None:
    values = np.array(rewards)
    advantages = of_one(values, scale=scale, baseline=baseline)
    assert abs(advantages.mean()) < 1e-6
    if advantages.any():
        order = np.argsort(values, kind="stable")
        steps = np.diff(advantages[order])
        assert (steps >= 0.0).all(), "rounding may make rewards that differ by an ulp equal, but not exchange them"
        assert (steps[np.diff(values[order]) > 1e-6] > 0.0).all()
