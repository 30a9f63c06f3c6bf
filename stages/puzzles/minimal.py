"""Minimal sets of clues for any family: a growing pool of worlds that the clues must rule out.

Clues are dropped in order while the others rule out the pool; the family's solver then looks for a world that the kept
ones allow besides the solution, and what it finds joins the pool, until there is none. The result is that of dropping
clue after clue with a proof each, whichever worlds the solver happens to find: a clue is dropped if and only if the
clues kept before it and all those after it leave the solution alone. Every clue kept has a witness in the pool.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


class Pool:
    """Worlds other than the solution, by the clues that rule them out."""

    def __init__(self, clues: int) -> None:
        """An empty pool for so many clues."""
        self._ruled_out = [0] * clues
        self._size = 0

    def add(self, truths: Sequence[NDArray[np.bool_]]) -> None:
        """Adds N worlds, none of them the solution: for each clue where it holds, bool [N]."""
        for i, holds in enumerate(truths):
            bits = np.packbits(~holds, bitorder="little").tobytes()
            self._ruled_out[i] |= int.from_bytes(bits, "little") << self._size
        self._size += len(truths[0]) if truths else 0

    def greedy(self) -> list[int] | None:
        """The clues left when each is dropped, in order, if the others rule out the pool; None if even all do not."""
        every = (1 << self._size) - 1
        later = [0]
        for mask in reversed(self._ruled_out):
            later.append(later[-1] | mask)
        later.reverse()
        if later[0] != every:
            return None
        kept: list[int] = []
        covered = 0
        for i, mask in enumerate(self._ruled_out):
            if covered | later[i + 1] != every:
                kept.append(i)
                covered |= mask
        return kept


def keep_needed(pool: Pool, find_other: Callable[[list[int]], bool]) -> list[int] | None:
    """The clues to keep, in order, or None if even all of them allow another world.

    Args:
        pool: Some worlds to begin with, or none.
        find_other: Looks for a world that the given clues allow besides the solution and adds it to the pool; false
            if it proves that there is none.
    """
    while True:
        kept = pool.greedy()
        if kept is None or not find_other(kept):
            return kept
