"""Terms of the reward that look at a completion's form: layout, length, repetition."""

import math
import re
from collections.abc import Collection
from typing import Literal

from pydantic import Field, model_validator

from artifacts.config import Config

_OWN_LINE = re.compile(r"^[ \t]*[*_]{0,3}([A-Z])[*_]{0,3}[.):][*_]{0,3}[ \t]+\S", re.MULTILINE)


class LengthCosineConfig(Config):
    """A term that follows half a cosine wave in the completion's length (Open-RS, arXiv 2503.16219).

    With p = length / limit it is far + (near - far) (1 + cos(pi p)) / 2: `near` at length 0, `far` at the limit. An
    exact completion goes from 1 to 0.5. One that is not goes from -1 to -0.5 (`short_is_worse`, as the paper says) or
    from 0 to -0.5 (`long_is_worse`, what its published command line sets).
    """

    weight: float = Field(default=1.0, ge=0, le=1e6, description="Times the term.")
    wrong: Literal["short_is_worse", "long_is_worse"] = Field(
        default="short_is_worse", description="Which wrong completions lose more."
    )
    unit: Literal["tokens", "characters"] = Field(default="tokens", description="What length is counted in.")
    limit: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Length at which the wave ends; null = the sampler's max_tokens.",
    )
    clamped: bool = Field(
        default=True, description="Stay at `far` beyond the limit; false = the wave goes on, as in Open-RS."
    )

    @model_validator(mode="after")
    def _limit_has_the_unit(self) -> "LengthCosineConfig":
        if self.unit == "characters" and self.limit is None:
            raise ValueError("length_cosine.limit is needed with unit 'characters': the sampler's limit is in tokens")
        return self


def length_cosine(exact: bool, tokens: int, characters: int, limit_tokens: int, config: LengthCosineConfig) -> float:
    """The term of one completion before its weight, in [-1, 1]; `limit_tokens` is the sampler's max_tokens."""
    progress = (tokens if config.unit == "tokens" else characters) / (config.limit or limit_tokens)
    if config.clamped:
        progress = min(1.0, progress)
    if exact:
        near, far = 1.0, 0.5
    else:
        near, far = (-1.0 if config.wrong == "short_is_worse" else 0.0), -0.5
    return far + 0.5 * (near - far) * (1.0 + math.cos(math.pi * progress))


def well_formed(text: str, letters: Collection[str]) -> bool:
    """Whether each letter's answer begins a line of its own: `A. something`, emphasis allowed."""
    return set(letters) <= set(_OWN_LINE.findall(text))


def repetition(text: str, n: int) -> float:
    """Share of the n-grams of lower-case words that stood before: 1 - different / all, 0 where there are none."""
    words = text.lower().split()
    ngrams = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    return 1.0 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def soft_overlong(tokens: int, limit_tokens: int, buffer_tokens: int) -> float:
    """How far a completion reaches into the buffer before the limit: 0 up to its start, 1 from the limit on.

    Source: DAPO (arXiv 2503.14476), whose penalty is its negative.
    """
    return min(1.0, max(0.0, (tokens - (limit_tokens - buffer_tokens)) / buffer_tokens))
