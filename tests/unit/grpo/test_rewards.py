"""Rewards by hand: each term, and that an unfinished answer costs what the recipe says."""

from typing import Any

import pytest
from pydantic import ValidationError

from stages.environments.logic_puzzles.grading import well_formed
from stages.environments.puzzle import DeductionCounts
from stages.grpo.reward_terms import (
    LengthCosineConfig,
    OutcomeRewards,
    PatternPenalty,
    has_pattern,
    length_cosine,
    repetition,
)
from stages.grpo.rewards import RewardConfig, RewardInputs, reward_terms
from stages.grpo.script import share_in_script, share_outside
from stages.grpo.surprise import surprise, tokens_until


def reward(config: RewardConfig, **changes: Any) -> float:
    judged = {
        "accuracy": 0.75, "exact": False, "truncated": False, "sound": 0.0, "surprise": 0.0, "text": "",
        "well_formed": False, "tokens": 10, "limit_tokens": 20480, "answered": True, **changes,
    }  # fmt: skip
    return sum(reward_terms(RewardInputs(**judged), config).values())


@pytest.mark.parametrize(
    ("truncated", "policy", "expected"),
    [
        (False, "penalty", 0.75),
        (True, "penalty", 0.5),
        (True, "zero", 0.0),
        (False, "zero", 0.75),
        (True, "graded", 0.75),
        (True, "masked", 0.75),
    ],
)
def test_truncation(truncated: bool, policy: str, expected: float) -> None:
    penalty = {"truncation_penalty": 0.25} if policy == "penalty" else {}
    config = RewardConfig.model_validate({"truncated": policy, **penalty})
    assert reward(config, truncated=truncated) == expected


@pytest.mark.parametrize(
    ("tokens", "expected"), [(16384, 0.75), (17408, 0.5), (18432, 0.25), (20480, -0.25), (21504, -0.25)]
)
def test_soft_overlong_of_dapo(tokens: int, expected: float) -> None:
    """Limit 20480, buffer 4096: 0, -0.25, -0.5, -1, and no less beyond."""
    config = RewardConfig(truncated="soft_overlong", truncation_penalty=1.0, overlong_buffer_tokens=4096)
    assert reward(config, tokens=tokens) == pytest.approx(expected)


def test_a_buffer_without_its_policy_is_refused() -> None:
    for settings in ({"overlong_buffer_tokens": 8}, {"truncated": "soft_overlong"}):
        with pytest.raises(ValidationError, match="if, and only if"):
            RewardConfig.model_validate(settings)


def test_sound_deductions_are_worth_their_weight() -> None:
    assert reward(RewardConfig(deductions_weight=0.5), accuracy=0.5, sound=0.75) == 0.875
    assert DeductionCounts(statements=6, proved=3, restated=2, open=1, contradicted=0).sound == 0.75
    assert DeductionCounts(statements=2, proved=0, restated=2, open=0, contradicted=0).sound == 0.0


def test_exact_bonus() -> None:
    config = RewardConfig(accuracy_weight=2.0, exact_weight=0.5)
    assert reward(config, accuracy=1.0, exact=True) == 2.5
    assert reward(config, accuracy=0.5) == 1.0


def test_accuracy_power() -> None:
    assert reward(RewardConfig(accuracy_power=3.0), accuracy=0.5) == 0.125


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A. Miss Peach\nB. Rope", True),
        ("So:\n**A.** Miss Peach\n  B) Rope", True),
        ("A. Miss Peach B. Rope", False),
        ("A. Miss Peach", False),
        ("A.\nB. Rope", False),
        ("The answer A. Miss Peach\nB. Rope", False),
        ("", False),
    ],
)
def test_every_letter_on_its_own_line(text: str, expected: bool) -> None:
    assert well_formed(text, "AB") is expected
    assert reward(RewardConfig(format_weight=0.25), well_formed=expected) == 0.75 + 0.25 * expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a b c a b c", 0.25), ("A b C a B c", 0.25), ("a b", 0.0), ("a a a a", 0.5), ("a b c d", 0.0)],
)
def test_repeated_trigrams(text: str, expected: float) -> None:
    """abc bca cab abc: three different of four; aaa aaa: one of two."""
    assert repetition(text, 3) == pytest.approx(expected)
    assert reward(RewardConfig(repetition_weight=2.0), text=text) == pytest.approx(0.75 - 2.0 * expected)


@pytest.mark.parametrize(
    ("exact", "wrong", "values"),
    [
        (True, "short_is_worse", [1.0, 0.9268, 0.75, 0.5732, 0.5]),
        (False, "long_is_worse", [0.0, -0.0732, -0.25, -0.4268, -0.5]),
        (False, "short_is_worse", [-1.0, -0.9268, -0.75, -0.5732, -0.5]),
    ],
)
def test_length_cosine_of_open_rs(exact: bool, wrong: str, values: list[float]) -> None:
    config = LengthCosineConfig.model_validate({"wrong": wrong})
    for tokens, value in zip((0, 896, 1792, 2688, 3584), values, strict=True):
        assert length_cosine(exact, tokens, 0, 3584, config) == pytest.approx(value, abs=5e-5)


def test_length_cosine_goes_on_unless_clamped_and_counts_what_it_is_told() -> None:
    wave = LengthCosineConfig(unit="characters", limit=1000, clamped=False)
    clamped = wave.model_copy(update={"clamped": True})
    assert [length_cosine(True, 0, n, 7, wave) for n in (500, 1500, 2000)] == pytest.approx([0.75, 0.75, 1.0])
    assert [length_cosine(True, 0, n, 7, clamped) for n in (500, 1500, 2000)] == pytest.approx([0.75, 0.5, 0.5])
    with pytest.raises(ValidationError, match="limit is needed"):
        LengthCosineConfig(unit="characters")


def test_terms_are_named() -> None:
    config = RewardConfig(format_weight=1.0, length_cosine=LengthCosineConfig(weight=2.0), truncated="graded")
    terms = reward_terms(RewardInputs(0.5, True, False, 0.0, 0.0, "A. x\nB. y", True, 0, 8, True), config)
    assert terms == {"accuracy": 0.5, "format": 1.0, "length_cosine": 2.0}


@pytest.mark.parametrize(("weight", "expected"), [(0.1, 0.49), (0.2, 0.48), (0.3, 0.47), (1.0, 0.4)])
def test_surprise_takes_the_place_of_a_share_of_the_accuracy(weight: float, expected: float) -> None:
    """Accuracy 0.5, surprise 0.8: (1 - b) 0.5 + b 0.5 0.8."""
    config = RewardConfig(surprise_weight=weight)
    assert reward(config, accuracy=0.5, surprise=0.8) == pytest.approx(expected)
    assert reward(config, accuracy=0.0, surprise=0.8) == 0.0
    squared = RewardConfig(surprise_weight=weight, accuracy_power=2.0, accuracy_weight=4.0)
    assert reward(squared, accuracy=0.5, surprise=0.8) == pytest.approx(2 * expected)
    assert reward(RewardConfig(surprise_weight=weight, truncated="zero"), surprise=9.0, truncated=True) == 0.0


def test_surprise_without_accuracy_is_refused() -> None:
    with pytest.raises(ValidationError, match="a share of the accuracy term"):
        RewardConfig(surprise_weight=0.1, accuracy_weight=0.0, exact_weight=1.0)


def test_surprise_is_the_mean_of_the_first_tokens() -> None:
    assert surprise([-0.5, -1.5, -4.0], 2) == 1.0
    assert surprise([-0.5, -1.5, -4.0], 3) == 2.0
    assert surprise([-0.5], 0) == surprise([], 0) == 0.0


@pytest.mark.parametrize(("characters", "tokens"), [(0, 0), (1, 1), (2, 1), (3, 3), (6, 4), (7, 4)])
def test_tokens_until_a_character(characters: int, tokens: int) -> None:
    """Tokens of 2, 0, 1 and 3 characters, the second a special one."""
    assert tokens_until([2, 2, 3, 6], characters) == tokens


@pytest.mark.parametrize(
    ("text", "script", "expected"),
    [
        ("The rope, 3 times: 11:30 PM", "latin", 1.0),
        ("\u6211\u4eec need \u63a8\u7406", "latin", 0.2),  # four Han characters, one Latin word
        ("\u6211\u4eec need \u63a8\u7406", "han", 0.8),
        ("\u041f\u0440\u0438\u0432\u0435\u0442 to you too", "latin", 0.75),
        ("\u041f\u0440\u0438\u0432\u0435\u0442 to you too", "cyrillic", 0.25),
        ("\u0440ope", "latin", 0.0),  # a Cyrillic letter in disguise
        ("na\u00efve caf\u00e9", "latin", 1.0),  # accents are no letters
        ("\u0939\u093f\u0928\u094d\u0926\u0940 is one word", "devanagari", 0.25),
        ("12 + 3 = 15", "latin", 0.0),
        ("", "latin", 0.0),
        ("plain", "han", 0.0),
    ],
)
def test_share_of_words_in_a_script(text: str, script: Any, expected: float) -> None:
    assert share_in_script(text, script) == pytest.approx(expected)
    config = RewardConfig(language_weight=0.5, language_script=script)
    assert reward(config, text=text) == pytest.approx(0.75 + 0.5 * expected)


@pytest.mark.parametrize(
    ("characters", "accuracy", "expected"),
    [(4000, 1.0, 0.0), (40_000, 1.0, 0.9), (40_000, 0.0, -0.1), (400, 0.0, -10.0), (0, 0.0, -1000.0)],
)
def test_the_reward_for_exploration_takes_less_from_longer_completions(
    characters: int, accuracy: float, expected: float
) -> None:
    """RLSP's p of 1000: 1000 / (characters / 4) is subtracted."""
    config = RewardConfig(shortness_penalty=1000.0)
    assert reward(config, accuracy=accuracy, text="x" * characters) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("exact", "answered", "expected"), [(True, True, 1.0), (False, True, -1.0), (False, False, -1.0)]
)
def test_right_and_wrong_on_the_scale_of_still3(exact: bool, answered: bool, expected: float) -> None:
    config = RewardConfig(accuracy_weight=0.0, outcomes=OutcomeRewards(), truncated="graded")
    assert reward(config, exact=exact, answered=answered) == expected


def test_no_answer_can_cost_more_than_a_wrong_one() -> None:
    config = RewardConfig(accuracy_weight=0.0, outcomes=OutcomeRewards(no_answer=-2.0), truncated="graded")
    assert [reward(config, exact=False, answered=answered) for answered in (True, False)] == [-1.0, -2.0]


PATTERNS = PatternPenalty(repetition_words=2, repetition_above=0.5, foreign_above=0.25)


@pytest.mark.parametrize(
    ("text", "truncated", "found"),
    [
        ("the sum is twelve", False, False),
        ("the sum is twelve", True, True),
        ("so so so so so so", False, True),  # 5 pairs of words, 1 different: 0.8 are repetitions
        ("so it is so it is", False, False),  # 5 pairs, 3 different: 0.4
        ("the sum \u662f \u5341", False, True),  # 2 of 4 words
        ("the sum is \u5341", False, False),  # 1 of 4 is not above 0.25
        ("12", False, False),  # no words
    ],
)
def test_an_unwanted_pattern_is_found(text: str, truncated: bool, found: bool) -> None:
    assert has_pattern(text, truncated, PATTERNS) == found


def test_an_unwanted_pattern_overrides_a_right_answer() -> None:
    config = RewardConfig(exact_weight=1.0, patterns=PATTERNS, truncated="graded")
    assert reward(config, exact=True, accuracy=1.0, text="the sum is twelve") == 2.0
    assert reward(config, exact=True, accuracy=1.0, text="the sum is twelve", truncated=True) == -1.0
    terms = reward_terms(RewardInputs(1.0, True, True, 0.0, 0.0, "so", False, 1, 8, True), config)
    assert terms == {"accuracy": 0.0, "exact": 0.0, "patterns": -1.0}


def test_a_text_without_words_is_in_no_foreign_script() -> None:
    assert share_outside("12 + 3", "latin") == 0.0
    assert share_outside("5\u00b2 = 25 \u2460 \u00bd", "latin") == 0.0, "digits in another form"
    assert share_outside("\u5341 ten", "latin") == 0.5
