"""Finds a minimal set of clues. CP-SAT searches for other worlds; the lawful worlds near each join the pool."""

import random

from stages.environments.logic_puzzles.minimal import WorldPool, keep_needed
from stages.environments.temporal_clue.formal import Statement
from stages.environments.temporal_clue.generation.nearby import nearby
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.worlds import World, Worlds


def minimise(encoding: Encoding, world: World, clues: list[Statement]) -> list[Statement] | None:
    """Returns a minimal set of clues that allows one world only (see `stages.environments.logic_puzzles.minimal`).

    Args:
        encoding: The rules; the clues are added to it.
        world: The solution, in which all clues are true.
        clues: Candidates, in the order in which the search tries to drop them.

    Returns:
        The kept clues in their order, or None if all clues together allow another world.
    """
    literals = [encoding.literal(clue) for clue in clues]
    truths = [literal for literal in encoding.truths(world) if literal != encoding.true]
    encoding.require([~literal for literal in truths])
    pool = WorldPool(len(clues))

    def add(worlds: Worlds) -> None:
        pool.add([worlds.holds(clue) for clue in clues])

    def find_other(kept: list[int]) -> bool:
        rng.shuffle(truths)
        values = encoding.solve([literals[i] for i in kept], near=truths)
        if values is None:
            return False
        other = encoding.world(values)
        near = nearby(encoding.shape, other)
        add(Worlds.of(encoding.shape, [other]))
        add(near.where(~near.same_as(world)))
        return True

    rng = random.Random(0)
    add(nearby(encoding.shape, world))
    kept = keep_needed(pool, find_other)
    return None if kept is None else [clues[i] for i in kept]
