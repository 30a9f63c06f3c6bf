"""Finds a minimal set of clues with CP-SAT: the model is built once, clues are switched on as assumptions."""

import numpy as np

from stages.puzzles.temporal_clue.encoding import Encoding
from stages.puzzles.temporal_clue.formal import Statement
from stages.puzzles.temporal_clue.worlds import World, Worlds


def minimise(encoding: Encoding, world: World, clues: list[Statement]) -> list[Statement] | None:
    """Drops clues, the first ones first, while the others leave `world` as the only one.

    Every clue kept has a witness: another world that all other kept clues allow.

    Args:
        encoding: The rules; the clues are added to it.
        world: The solution, in which all clues hold.
        clues: Candidates, the first to be dropped first.

    Returns:
        The kept clues in the order given, or None if even all of them allow another world.
    """
    literals = [encoding.literal(clue) for clue in clues]
    encoding.require([~literal for literal in encoding.truths(world)])
    active = list(range(len(clues)))
    if encoding.solve([literals[i] for i in active]) is not None:
        return None
    needed: set[int] = set()
    violated_by: list[frozenset[int]] = []
    position = 0
    core = set(encoding.core)
    active = [i for i in active if literals[i] in core]
    while position < len(active):
        dropped = active[position]
        if dropped in needed or any(gaps & set(active) == {dropped} for gaps in violated_by):
            position += 1
            continue
        values = encoding.solve([literals[i] for i in active if i != dropped])
        if values is None:
            core = set(encoding.core)
            active = [i for i in active if i != dropped and literals[i] in core]
            continue
        other = Worlds.of(encoding.shape, [encoding.world(values)])
        violated_by.append(frozenset(i for i in active if not bool(np.asarray(other.holds(clues[i]))[0])))
        needed.add(dropped)
        position += 1
    return [clues[i] for i in active]
