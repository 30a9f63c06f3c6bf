"""Limits of buying: tokens a minute, and dollars."""

import asyncio
import time
from dataclasses import dataclass

from artifacts.errors import DeerstalkerError


class BudgetReachedError(DeerstalkerError):
    """The next answer might exceed the budget."""


class TokenRate:
    """A token bucket that holds a minute's tokens.

    Args:
        per_minute: Tokens a minute; None for no limit.
    """

    def __init__(self, per_minute: int | None) -> None:
        self._capacity = self._level = float(per_minute or 0)
        self._filled_at = time.monotonic()
        self._turn = asyncio.Lock()

    async def take(self, tokens: float) -> None:
        """Takes the tokens once the bucket has them, or is full if they exceed its size; calls are served in order."""
        if not self._capacity:
            return
        async with self._turn:
            while (missing := min(tokens, self._capacity) - self._filled()) > 0.0:
                await asyncio.sleep(missing * 60.0 / self._capacity)
            self._level -= tokens

    def settle(self, taken: float, used: float) -> None:
        """Corrects the bucket by the difference between the tokens taken for a request and those used."""
        self._level += taken - used

    def _filled(self) -> float:
        now = time.monotonic()
        self._level = min(self._capacity, self._level + (now - self._filled_at) * self._capacity / 60.0)
        self._filled_at = now
        return self._level


@dataclass
class Budget:
    """Dollars that one command may spend.

    Attributes:
        limit: Largest amount to spend; None for no limit.
        spent: Cost of the replies so far. A request whose reply was lost counts with its highest possible cost, because
            its provider may charge for it.
        reserved: Highest possible cost of the requests under way.
    """

    limit: float | None = None
    spent: float = 0.0
    reserved: float = 0.0

    def fits(self, most: float) -> bool:
        """Returns whether an answer that costs at most `most` stays within the limit."""
        return self.limit is None or self.spent + self.reserved + most <= self.limit

    def settle(self, most: float, cost: float) -> None:
        """Replaces the reservation of an answer by its cost."""
        self.reserved -= most
        self.spent += cost
