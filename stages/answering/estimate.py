"""The cost of answers before they are bought."""

from collections.abc import Sequence
from typing import cast

import polars as pl

from stages.answering.prices import TokenPrice, Tokens, dollars
from stages.answering.purchase import PuzzleSample, most_tokens
from stages.answering.settings import ApiRequest
from stages.statistics.records import Record

_CHARACTERS_PER_TOKEN = 4.0


class Estimate(Record):
    """The estimated cost of a model's missing answers.

    Attributes:
        name: Name of the model.
        missing: Number of answers that would be bought.
        answers: Number of answers in all; the others are stored.
        expected: Expected dollars; None without a price or a length to expect.
        most: Upper bound of the cost in dollars; None without a price or a limit of an answer's length.
        by: Source of the expected length.
    """

    name: str
    missing: int
    answers: int
    expected: float | None = None
    most: float | None = None
    by: str = ""

    def line(self) -> str:
        """Returns the estimate in words."""
        if not self.missing:
            return f"{self.name}: all {self.answers} answers are stored"
        expected = "not known" if self.expected is None else f"{dollars(self.expected)} ({self.by})"
        most = "without a bound" if self.most is None else f"at most {dollars(self.most)}"
        return f"{self.name}: {self.missing} of {self.answers} answers to buy; expected cost {expected}, {most}"


def estimate_purchase(
    name: str,
    missing: Sequence[PuzzleSample],
    answers: int,
    stored: pl.DataFrame,
    request: ApiRequest,
    price: TokenPrice | None,
    expected: Tokens | None,
) -> Estimate:
    """Returns the estimated cost of buying the missing answers.

    Args:
        name: Name of the model.
        missing: The questions without a stored answer.
        answers: Number of all questions.
        stored: Stored answers of the model, whose mean length is expected of the missing ones.
        request: Parameters, whose limit bounds an answer's length.
        price: Price of tokens; None if it is not known.
        expected: Mean tokens in the file of models, used as long as nothing is stored; None if not given.
    """
    if not missing or price is None:
        return Estimate(name=name, missing=len(missing), answers=answers)
    bounds = [most_tokens(question.prompt, request) for question in missing]
    most = sum(price.cost(tokens) for tokens in bounds if tokens is not None)
    lengths, by = _expected(missing, stored, expected)
    return Estimate(
        name=name,
        missing=len(missing),
        answers=answers,
        expected=None if lengths is None else sum(price.cost(tokens) for tokens in lengths),
        most=None if None in bounds else most,
        by=by,
    )


def _expected(
    missing: Sequence[PuzzleSample], stored: pl.DataFrame, expected: Tokens | None
) -> tuple[list[Tokens] | None, str]:
    """Returns the expected tokens of each answer, or None, and their source in words."""
    counted = stored.drop_nulls("completion_tokens")
    if not counted.is_empty():
        completion = float(cast(float, counted["completion_tokens"].mean()))
        by = f"mean of {len(counted)} stored answers: {completion:.0f} tokens"
        return [Tokens(len(item.prompt) / _CHARACTERS_PER_TOKEN, completion) for item in missing], by
    if expected is not None:
        return [expected] * len(missing), f"{expected.completion:.0f} tokens an answer, by the file of models"
    return None, ""
