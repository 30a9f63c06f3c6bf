"""Terms of the reward for a completion's form: layout, length, repetition."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from artifacts.config import Config
from stages.grpo.script import Script, share_outside


class LengthCosineConfig(Config):
    """A term that depends on the completion's length by half a cosine wave (Open-RS, arXiv 2503.16219).

    With p = length / limit the term is far + (near - far) (1 + cos(pi p)) / 2, which is `near` at length 0 and `far` at
    the limit. For an exact completion near is 1 and far is 0.5. For any other, far is -0.5, and near is -1
    (`short_is_worse`, as in the paper) or 0 (`long_is_worse`, as in the paper's published command line).
    """

    weight: float = Field(default=1.0, ge=0, le=1e6, description="Factor of the term.")
    wrong: Literal["short_is_worse", "long_is_worse"] = Field(
        default="short_is_worse", description="Whether short or long completions lose more if they are not exact."
    )
    unit: Literal["tokens", "characters"] = Field(default="tokens", description="Unit of the length.")
    limit: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Length at which the half wave ends; null = the sampler's max_tokens.",
    )
    clamped: bool = Field(
        default=True, description="Keep the value of the limit beyond it; false = continue the wave, as in Open-RS."
    )

    @model_validator(mode="after")
    def _limit_has_the_unit(self) -> "LengthCosineConfig":
        if self.unit == "characters" and self.limit is None:
            raise ValueError("length_cosine.limit is needed with unit 'characters': the sampler's limit is in tokens")
        return self


class OutcomeRewards(Config):
    """A reward for each outcome of a completion; the defaults are those of STILL-3-1.5B."""

    right: float = Field(default=1.0, ge=-1e6, le=1e6, description="Reward if every answer is right.")
    wrong: float = Field(default=-1.0, ge=-1e6, le=1e6, description="Reward of any other completion with an answer.")
    no_answer: float = Field(default=-1.0, ge=-1e6, le=1e6, description="Reward if no answer could be found.")


class PatternPenalty(Config):
    """A reward in place of all others for completions with an unwanted pattern, right or wrong (T1)."""

    reward: float = Field(default=-1.0, ge=-1e6, le=1e6, description="Reward of such a completion.")
    repetition_words: int = Field(default=20, ge=1, le=1000, description="Number of words in an n-gram.")
    repetition_above: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=0.2, description="Share of repeated n-grams above which a completion repeats itself; null: not checked."
    )
    truncated: bool = Field(default=True, description="Whether a completion that is cut has the pattern.")
    script: Script = Field(default="latin", description="Script that completions should be written in.")
    foreign_above: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=0.1, description="Share of words outside `script` above which languages are mixed; null: not checked."
    )


def has_pattern(text: str, truncated: bool, config: PatternPenalty) -> bool:
    """Returns whether a completion has one of the unwanted patterns.

    Args:
        text: The completion.
        truncated: Whether it was cut.
        config: The patterns.
    """
    if truncated and config.truncated:
        return True
    if config.repetition_above is not None and repetition(text, config.repetition_words) > config.repetition_above:
        return True
    return config.foreign_above is not None and share_outside(text, config.script) > config.foreign_above


def length_cosine(exact: bool, tokens: int, characters: int, limit_tokens: int, config: LengthCosineConfig) -> float:
    """Returns the length term of one completion before its weight, in [-1, 1].

    Args:
        exact: Whether all answers are right.
        tokens: Length of the completion in tokens.
        characters: Length of the completion in characters.
        limit_tokens: The sampler's max_tokens.
        config: Settings of the term.
    """
    progress = (tokens if config.unit == "tokens" else characters) / (config.limit or limit_tokens)
    if config.clamped:
        progress = min(1.0, progress)
    if exact:
        near, far = 1.0, 0.5
    else:
        near, far = (-1.0 if config.wrong == "short_is_worse" else 0.0), -0.5
    return far + 0.5 * (near - far) * (1.0 + math.cos(math.pi * progress))


def repetition(text: str, n: int) -> float:
    """Returns the share of n-grams of lower-case words that are repetitions: 1 - different / all, 0 without n-grams."""
    words = text.lower().split()
    ngrams = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    return 1.0 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def soft_overlong(tokens: int, limit_tokens: int, buffer_tokens: int) -> float:
    """Returns the share of the buffer before the limit that a completion fills: 0 before the buffer, 1 at the limit.

    Source: DAPO (arXiv 2503.14476), whose penalty is the negative of this share.
    """
    return min(1.0, max(0.0, (tokens - (limit_tokens - buffer_tokens)) / buffer_tokens))
