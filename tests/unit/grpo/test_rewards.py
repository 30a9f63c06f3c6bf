"""Rewards by hand: an unfinished answer costs what the recipe says."""

import pytest

from stages.grpo.rewards import RewardConfig, reward
from stages.puzzles.puzzle import DeductionCounts


@pytest.mark.parametrize(
    ("truncated", "policy", "expected"),
    [(False, "penalty", 0.75), (True, "penalty", 0.5), (True, "zero", 0.0), (True, "graded", 0.75)],
)
def test_truncation(truncated: bool, policy: str, expected: float) -> None:
    config = RewardConfig.model_validate({"truncated": policy, "truncation_penalty": 0.25})
    assert reward(0.75, exact=False, truncated=truncated, config=config) == expected


def test_sound_deductions_are_worth_their_weight() -> None:
    config = RewardConfig(deductions_weight=0.5)
    assert reward(0.5, exact=False, truncated=False, config=config, sound=0.75) == 0.875
    assert DeductionCounts(statements=6, proved=3, restated=2, open=1, contradicted=0).sound == 0.75
    assert DeductionCounts(statements=2, proved=0, restated=2, open=0, contradicted=0).sound == 0.0


def test_exact_bonus() -> None:
    config = RewardConfig(accuracy_weight=2.0, exact_weight=0.5)
    assert reward(1.0, exact=True, truncated=False, config=config) == 2.5
    assert reward(0.5, exact=False, truncated=False, config=config) == 1.0
