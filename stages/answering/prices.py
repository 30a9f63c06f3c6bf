"""Prices of answers. A price is not part of an identity: costs are computed from the stored usage when needed."""

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import Field

from artifacts.config import Config

_MILLION = 1e6
MOST_TOKENS = 10**9
"""Largest count of tokens in a reply's usage that is believed."""


def dollars(amount: float) -> str:
    """Returns an amount as text, with four decimals, or more if four show fewer than two significant digits."""
    decimals = 4 if amount == 0.0 else max(4, 1 - math.floor(math.log10(abs(amount))))
    return f"${amount:.{decimals}f}"


@dataclass(frozen=True)
class Tokens:
    """Token counts of an answer, or means over answers.

    Attributes:
        prompt: Tokens of the prompt.
        completion: Tokens of the completion, including hidden reasoning.
        cached: Tokens of the prompt that the provider had cached.
    """

    prompt: float
    completion: float
    cached: float = 0.0


def cached_tokens(usage: Mapping[str, Any]) -> float:
    """Returns the number of cached prompt tokens that a reply's usage states; 0 if it states none."""
    details = usage.get("prompt_tokens_details")
    cached = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, Mapping) else None
    return float(cached) if isinstance(cached, int | float) and 0 < cached <= MOST_TOKENS else 0.0


class Dated(Config):
    """Where and when a price was read."""

    source: str = Field(min_length=1, description="Where the price was read: an address, or words.")
    date: datetime.date = Field(description="Day on which it was read, as 2025-03-01.")


class TokenPrice(Dated):
    """Price of an API in dollars per million tokens."""

    input: float = Field(ge=0.0, description="Dollars per million tokens of the prompt.")
    output: float = Field(ge=0.0, description="Dollars per million tokens of the completion, reasoning included.")
    cached_input: float | None = Field(
        default=None, ge=0.0, description="Dollars per million cached tokens of the prompt; null: the price of `input`."
    )

    def cost(self, tokens: Tokens) -> float:
        """Returns the cost in dollars of an answer with these token counts."""
        cached_price = self.input if self.cached_input is None else self.cached_input
        cached = min(tokens.cached, tokens.prompt)
        prompt = (tokens.prompt - cached) * self.input + cached * cached_price
        return (prompt + tokens.completion * self.output) / _MILLION


class HourPrice(Dated):
    """Price of the machine that samples from a checkpoint."""

    per_hour: float = Field(ge=0.0, description="Dollars per hour of one core or one GPU.")
    devices: int = Field(default=1, ge=1, le=100_000, description="Number of cores or GPUs that sample.")

    def cost(self, tokens: Tokens, tokens_per_s: float) -> float:
        """Returns the cost in dollars of an answer, at the measured number of sampled tokens per second, above 0."""
        return self.per_hour * self.devices / 3600.0 * tokens.completion / tokens_per_s
