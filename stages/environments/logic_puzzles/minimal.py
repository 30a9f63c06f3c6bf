"""Minimal sets of clues for any environment.

`drop_needless` asks for a proof with each set that it tries. `keep_needed` uses a growing pool of worlds that the clues
must rule out, and repeats two steps. First it drops each clue, in order, if the others rule out all worlds of the pool.
Then the environment's solver searches for a further world that the kept clues allow besides the solution, and adds it
to the pool. The search ends if there is none. The result does not depend on the worlds that the solver finds: a clue is
dropped if and only if the clues kept before it and all clues after it allow only the solution. For every kept clue, the
pool has a world that only this clue rules out.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def as_bits(chosen: NDArray[np.bool_]) -> int:
    """Returns booleans, bool [N], as the bits of an integer: bit i stands for element i."""
    return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")


def greedy(ruled_out: Sequence[int], worlds: int) -> list[int] | None:
    """Drops each clue, in order, if the others rule out all worlds, and returns the positions of the rest.

    Args:
        ruled_out: For each clue, the worlds that it rules out, as bits.
        worlds: All worlds, as bits.

    Returns:
        Positions of the remaining clues; None if all clues together do not rule out the worlds.
    """
    later = [0]
    for mask in reversed(ruled_out):
        later.append(later[-1] | mask)
    later.reverse()
    if later[0] != worlds:
        return None
    kept: list[int] = []
    covered = 0
    for i, mask in enumerate(ruled_out):
        if covered | later[i + 1] != worlds:
            kept.append(i)
            covered |= mask
    return kept


class WorldPool:
    """Worlds other than the solution, with the clues that rule them out."""

    def __init__(self, clues: int) -> None:
        """Makes an empty pool; `clues` is the number of clues."""
        self._ruled_out = [0] * clues
        self._size = 0

    def add(self, truths: Sequence[NDArray[np.bool_]]) -> None:
        """Adds N worlds, none of which is the solution.

        Args:
            truths: For each clue, the worlds in which it is true: bool [N].
        """
        for i, holds in enumerate(truths):
            self._ruled_out[i] |= as_bits(~holds) << self._size
        self._size += len(truths[0]) if truths else 0

    def greedy(self) -> list[int] | None:
        """Returns the positions of the clues that `greedy` keeps for the worlds of the pool."""
        return greedy(self._ruled_out, (1 << self._size) - 1)


def keep_needed(pool: WorldPool, find_other: Callable[[list[int]], bool]) -> list[int] | None:
    """Returns a minimal set of clues that allows the solution only.

    Args:
        pool: The first worlds, or an empty pool.
        find_other: Searches for a world other than the solution that the clues at the given positions allow, and adds
            it to the pool. It returns False if it proves that there is none.

    Returns:
        Positions of the clues to keep, in order; None if all clues together allow another world.
    """
    while True:
        kept = pool.greedy()
        if kept is None or not find_other(kept):
            return kept


def drop_needless(clues: Sequence[int], entailed: Callable[[list[int]], bool]) -> list[int]:
    """Returns those clues that are needed to entail a conclusion. The last clues are dropped first.

    Halves are dropped before single clues. That gives the same result with fewer solves, since most clues are not
    needed.

    Args:
        clues: Positions of clues that entail the conclusion.
        entailed: Returns whether the clues at some positions entail the conclusion.
    """
    kept, blocks = list(clues), [list(clues)] if clues else []
    while blocks:
        block = blocks.pop()
        rest = [i for i in kept if i not in block]
        if entailed(rest):
            kept = rest
        elif len(block) > 1:
            blocks += [block[: len(block) // 2], block[len(block) // 2 :]]
    return kept
