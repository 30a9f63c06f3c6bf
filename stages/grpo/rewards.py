"""The reward of a completion: a weighted sum of terms, and the penalty for an unfinished answer."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config
from stages.grpo.process import StepRewards
from stages.grpo.reward_terms import (
    LengthCosineConfig,
    OutcomeRewards,
    PatternPenalty,
    has_pattern,
    length_cosine,
    repetition,
    soft_overlong,
)
from stages.grpo.script import Script, share_in_script
from stages.processes.user_file import UserFunction


class RewardConfig(Config):
    """Terms of the reward; a term whose weight is 0 is not computed."""

    accuracy_weight: float = Field(
        default=1.0, ge=0, le=1e6, description="Factor of the fraction of answers that are right."
    )
    accuracy_power: float = Field(
        default=1.0, gt=0, le=1000, description="Power to which this fraction is raised first (OpenPipe tried 2 and 3)."
    )
    exact_weight: float = Field(default=0.0, ge=0, le=1e6, description="Added if every answer is right.")
    outcomes: OutcomeRewards | None = Field(
        default=None, description="Rewards of right, wrong and missing answers, which are added; null: none."
    )
    function: UserFunction | None = Field(
        default=None,
        description="Your own term, FILE.py:NAME, which is added to the others (docs/own_loss.md); with "
        "accuracy_weight 0 and truncated graded it is the whole reward.",
    )
    function_limit_s: float = Field(
        default=1.0,
        gt=0.0,
        le=3600.0,
        description="CPU seconds of `function` for a completion, and ten times as many wall-clock seconds; 0 is added "
        "for a completion that takes longer, or for which it fails.",
    )
    deductions_weight: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Factor of the fraction of asserted statements that are proved. Statements that restate a clue are "
        "not counted; a completion without other statements gets 0.",
    )
    step_rewards: StepRewards = Field(
        default_factory=StepRewards,
        description='Rewards of single steps, which only `grade.advantage.level = "process"` uses.',
    )
    format_weight: float = Field(
        default=0.0, ge=0, le=1e6, description="Added if each answer is in its place, such as after its letter."
    )
    length_cosine: LengthCosineConfig | None = Field(default=None, description="A term that depends on the length.")
    repetition_weight: float = Field(
        default=0.0, ge=0, le=1e6, description="Factor of the share of repeated n-grams, which is subtracted."
    )
    repetition_words: int = Field(default=3, ge=1, le=1000, description="Number of words in an n-gram.")
    language_weight: float = Field(
        default=0.0, ge=0, le=1e6, description="Factor of the share of words in `language_script` (after DeepSeek-R1)."
    )
    language_script: Script = Field(default="latin", description="Script that completions should be written in.")
    surprise_weight: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share b of the accuracy term a that is multiplied by the completion's surprise s: the term "
        "becomes a (1 - b) + a b s (OpenPipe tried 0.1 to 0.3). s is the mean negative log-probability of the "
        "completion's tokens up to its last answer.",
    )
    shortness_penalty: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="p in the term -p / (characters / 4), so that longer completions lose less (RLSP's exploration "
        "reward). A completion of fewer than 4 characters counts as one of 4.",
    )
    patterns: PatternPenalty | None = Field(
        default=None, description="Reward in place of all others for unwanted patterns; null: none."
    )
    truncated: Literal["graded", "zero", "penalty", "masked", "soft_overlong"] = Field(
        default="penalty",
        description="Reward of a completion that is cut at the token limit or by `early_stop`. `graded`: like any "
        "other. `zero`: 0 in place of all terms. `penalty`: the other terms minus `truncation_penalty`. `masked`: "
        "left out of its group and the loss. `soft_overlong`: for cut and finished completions alike, the penalty "
        "grows linearly over the last `overlong_buffer_tokens` before the limit (DAPO).",
    )
    truncation_penalty: float = Field(
        default=0.5, ge=0, le=1e6, description="Largest penalty under `penalty` and `soft_overlong`."
    )
    overlong_buffer_tokens: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Length of the buffer of `soft_overlong`."
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if (self.truncated == "soft_overlong") != (self.overlong_buffer_tokens is not None):
            raise ValueError("overlong_buffer_tokens must be given if, and only if, truncated is 'soft_overlong'")
        if self.truncated not in ("penalty", "soft_overlong"):
            self.refuse_unread(("truncation_penalty",), f"with truncated = '{self.truncated}'")
        if self.surprise_weight and not self.accuracy_weight:
            raise ValueError("surprise_weight is a share of the accuracy term, but accuracy_weight is 0")
        return self


@dataclass(frozen=True)
class RewardInputs:
    """The properties of one completion that the terms depend on.

    Attributes:
        accuracy: Fraction of the answers that are right.
        exact: Whether all answers are right.
        truncated: Whether the completion was cut, at the token limit or by `early_stop`.
        sound: Fraction of its statements, without restated clues, that the clues entail.
        surprise: Mean negative log-probability of its tokens up to the last answer, in nats.
        text: The completion, without the text that a tool wrote.
        well_formed: Whether it has the layout that its prompt asks for; False if the reward does not depend on it.
        tokens: Number of its tokens that count against `limit_tokens`.
        limit_tokens: The sampler's max_tokens.
        answered: Whether any answer was found in it.
        own: What a user's own function returned; None if there is none, or if it failed.
        judged: What a judge's score is worth; None if the reward has no judge.
    """

    accuracy: float
    exact: bool
    truncated: bool
    sound: float
    surprise: float
    text: str
    well_formed: bool
    tokens: int
    limit_tokens: int
    answered: bool
    own: float | None = None
    judged: float | None = None


def reward_terms(inputs: RewardInputs, config: RewardConfig) -> dict[str, float]:
    """Returns the weighted terms of one completion by name; the reward is their sum.

    By default truncated completions get a penalty, because completions would otherwise grow until they reach the limit.
    A completion with an unwanted pattern has the reward of `patterns` and no other.
    """
    terms = _terms(inputs, config)
    if config.patterns is not None and has_pattern(inputs.text, inputs.truncated, config.patterns):
        return {**dict.fromkeys(terms, 0.0), "patterns": config.patterns.reward}
    return terms


def _terms(inputs: RewardInputs, config: RewardConfig) -> dict[str, float]:
    terms: dict[str, float] = {}
    if config.accuracy_weight:
        terms["accuracy"] = config.accuracy_weight * inputs.accuracy**config.accuracy_power
    if config.surprise_weight:
        terms["surprise"] = config.surprise_weight * terms["accuracy"] * (inputs.surprise - 1.0)
    if config.exact_weight:
        terms["exact"] = config.exact_weight * inputs.exact
    if config.outcomes is not None:
        answered = config.outcomes.wrong if inputs.answered else config.outcomes.no_answer
        terms["outcome"] = config.outcomes.right if inputs.exact else answered
    if config.function is not None:
        terms["function"] = inputs.own or 0.0
    if inputs.judged is not None:
        terms["judge"] = inputs.judged
    if config.deductions_weight:
        terms["deductions"] = config.deductions_weight * inputs.sound
    if config.format_weight:
        terms["format"] = config.format_weight * inputs.well_formed
    if config.length_cosine is not None:
        terms["length_cosine"] = config.length_cosine.weight * length_cosine(
            inputs.exact, inputs.tokens, len(inputs.text), inputs.limit_tokens, config.length_cosine
        )
    if config.repetition_weight:
        terms["repetition"] = -config.repetition_weight * repetition(inputs.text, config.repetition_words)
    if config.language_weight:
        terms["language"] = config.language_weight * share_in_script(inputs.text, config.language_script)
    if config.shortness_penalty:
        terms["shortness"] = -config.shortness_penalty / max(1.0, len(inputs.text) / 4)
    match config.truncated:
        case "zero" if inputs.truncated:
            return dict.fromkeys(terms, 0.0)
        case "penalty":
            terms["truncated"] = -config.truncation_penalty * inputs.truncated
        case "soft_overlong":
            filled_share = soft_overlong(inputs.tokens, inputs.limit_tokens, config.overlong_buffer_tokens or 1)
            terms["truncated"] = -config.truncation_penalty * filled_share
        case _:
            pass
    return terms
