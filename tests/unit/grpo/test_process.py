"""Process supervision against numbers worked by hand."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from stages.grpo.advantages import AdvantageConfig, batch_advantages
from stages.grpo.process import StepRewards, step_advantages, token_advantages

GROUP = [np.array([1.0, -1.0]), np.array([1.0])]
"""One completion with a true and a false step, and one with a true step: mean 1/3, population variance 8/9."""


def of_one(**config: Any) -> list[list[float]]:
    settings = {"level": "process", "scale": "none", "epsilon": 0.0, **config}
    (advantages,) = step_advantages([GROUP], AdvantageConfig(**settings))
    return [list(of_completion) for of_completion in advantages]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [[2 / 3, -4 / 3], [2 / 3]]),
        ({"scale": "population_std"}, [[0.70710678, -1.41421356], [0.70710678]]),  # divided by sqrt(8) / 3
        ({"scale": "sample_std"}, [[0.57735027, -1.15470054], [0.57735027]]),  # divided by 2 / sqrt(3)
        ({"scale": "batch_std"}, [[0.57735027, -1.15470054], [0.57735027]]),  # the batch is this group
        ({"baseline": "leave_one_out"}, [[1.0, -2.0], [1.0]]),  # means of the two others: 0, 1, 0
        ({"baseline": "none"}, [[1.0, -1.0], [1.0]]),
        # First steps are both true, and there is only one second step, which has nothing to be compared with.
        ({"step_baseline": "same_step"}, [[0.0, 0.0], [0.0]]),
    ],
)
def test_advantages_of_steps_by_hand(config: dict[str, Any], expected: list[list[float]]) -> None:
    for advantages, numbers in zip(of_one(**config), expected, strict=True):
        assert advantages == pytest.approx(numbers, abs=1e-8)


def test_steps_of_the_same_number_are_compared() -> None:
    group = [np.array([1.0, -1.0]), np.array([0.0, 1.0]), np.array([-1.0])]
    config = AdvantageConfig(level="process", step_baseline="same_step", scale="none")
    (advantages,) = step_advantages([group], config)
    assert [list(of_completion) for of_completion in advantages] == [[1.0, -1.0], [0.0, 1.0], [-1.0]]
    config = AdvantageConfig(level="process", step_baseline="same_step", scale="none", baseline="leave_one_out")
    (advantages,) = step_advantages([group], config)
    assert [list(of_completion) for of_completion in advantages] == [[1.5, -2.0], [0.0, 2.0], [-1.5]]


def test_equal_steps_of_the_same_number_give_exactly_nothing() -> None:
    """The mean of three 0.1 is not 0.1, and a group with any advantage but 0 is trained."""
    config = AdvantageConfig(level="process", step_baseline="same_step", scale="none")
    (advantages,) = step_advantages([[np.array([0.1, 0.3])] * 3], config)
    assert not np.concatenate(advantages).any()


def test_a_group_without_steps_or_with_equal_ones_has_no_signal() -> None:
    config = AdvantageConfig(level="process")
    nothing, equal, mixed = step_advantages([[np.zeros(0)] * 2, [np.ones(3), np.ones(1)], GROUP], config)
    assert [list(of_completion) for of_completion in nothing] == [[], []]
    assert [list(of_completion) for of_completion in equal] == [[0.0] * 3, [0.0]]
    assert [list(of_completion) for of_completion in mixed] == [
        pytest.approx([0.7071, -1.4142], abs=1e-3), pytest.approx([0.7071], abs=1e-3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        (1.0, [0.25 - 0.5, 0.25 - 0.5, 0.25 - 1.0, 0.25]),  # 0.5 - 1.0 up to the first end, -1.0 up to the second
        (0.5, [0.25 + 0.0, 0.25 + 0.0, 0.25 - 1.0, 0.25]),
        (0.0, [0.25 + 0.5, 0.25 + 0.5, 0.25 - 1.0, 0.25]),
    ],
)
def test_a_token_has_the_advantages_of_the_steps_that_end_at_or_after_it(
    discount: float, expected: list[float]
) -> None:
    assert token_advantages(0.25, [2, 3], np.array([0.5, -1.0]), 4, discount).tolist() == pytest.approx(expected)


def test_a_completion_without_steps_keeps_the_advantage_of_its_outcome() -> None:
    assert token_advantages(-0.5, [], np.zeros(0), 3, 1.0).tolist() == [-0.5] * 3
    assert token_advantages(-0.5, [], np.zeros(0), 0, 1.0).tolist() == []


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_two_steps_that_end_with_the_same_token_both_count(discount: float) -> None:
    assert token_advantages(0.0, [2, 2], np.array([1.0, 3.0]), 3, discount).tolist() == [4.0, 4.0, 0.0]


def test_a_step_whose_reward_is_null_has_no_advantage_and_is_in_no_baseline() -> None:
    config = AdvantageConfig(level="process", scale="none", step_baseline="same_step")
    (advantages,) = step_advantages([[np.array([np.nan, 1.0]), np.array([0.0, np.nan])]], config)
    assert [list(of_completion) for of_completion in advantages] == [[0.0, 0.5], [-0.5, 0.0]]
    assert token_advantages(0.0, [2, 4], np.array([0.0, 0.5]), 4, 0.0).tolist() == [0.0, 0.0, 0.5, 0.5]


def test_steps_after_the_first_false_statement_can_be_ignored() -> None:
    """They may follow from it by a valid inference; the false statement itself is to blame."""
    verdicts = ["proved", "contradicted", "proved", "open", "repeated", "wrong"]
    assert StepRewards().of(verdicts) == [1.0, -1.0, 1.0, -1.0, 0.0, -1.0]
    assert StepRewards(until_first_false=True).of(verdicts) == [1.0, -1.0, None, None, None, None]
    assert StepRewards(until_first_false=True).of(["proved", "right"]) == [1.0, 1.0]


def test_rewards_without_a_baseline_are_not_divided_by_their_deviation() -> None:
    with pytest.raises(ValidationError, match="set scale to none"):
        AdvantageConfig(baseline="none")


def test_without_a_baseline_equal_rewards_are_reinforced() -> None:
    config = AdvantageConfig(level="process", baseline="none", scale="none")
    (advantages,) = step_advantages([[np.ones(2), np.ones(1)]], config)
    assert [list(of_completion) for of_completion in advantages] == [[1.0, 1.0], [1.0]]
    (outcome,) = batch_advantages([np.ones(3)], config)
    assert list(outcome) == [1.0, 1.0, 1.0]
