"""Requests of a strategy, their replies, and the rounds of one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STICKER = "sticker"
"""Name of the step that writes notes on a puzzle. Their statements are proved or refuted."""

Key = tuple[str, int]
"""A puzzle's id and the number of a sample: one answer of a strategy."""


@dataclass(frozen=True)
class Request:
    """A prompt in token ids, template included.

    Attributes:
        token_ids: The ids.
        max_tokens: Largest number of tokens of the completion.
        stop: Text that ends the completion; empty for none.
    """

    token_ids: list[int]
    max_tokens: int
    stop: str = ""


@dataclass(frozen=True)
class Continuation:
    """A completion.

    Attributes:
        token_ids: Its tokens, the end token or the stop text included.
        text: Its words.
        finish_reason: As in the `rollouts` schema. It is `length`, without tokens, where the prompt filled the context.
    """

    token_ids: list[int]
    text: str
    finish_reason: str


@dataclass
class Chain:
    """The rounds of one answer: rows of the `rounds` schema without the columns that `StrategyRun.table` adds.

    Attributes:
        spent: Number of tokens that the model has written so far.
    """

    spent: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(
        self, step: str, text: str, finish_reason: str, tokens: int, *, point: str | None = None, answer: bool = False
    ) -> None:
        """Appends a round.

        Args:
            step: Purpose of the request.
            text: Its text; for an answer, all words that are graded.
            tokens: Number of tokens that the model wrote in this round.
            point: Name of a measurement of this answer by itself; None for none.
            answer: Whether the text is an answer, which is graded. The last answer is the strategy's.
        """
        self.spent += tokens
        self.rows.append(
            {
                "round": len(self.rows) + 1, "step": step, "point": point, "text": text, "finish_reason": finish_reason,
                "completion_tokens": tokens, "spent_tokens": self.spent, "answer": answer,
            }
        )  # fmt: skip
