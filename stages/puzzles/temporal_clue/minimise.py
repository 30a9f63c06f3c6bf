"""Finds a minimal set of clues with CP-SAT: one model, one unsatisfiable core, and witnesses for every clue kept."""

import numpy as np

from stages.puzzles.temporal_clue.encoding import Encoding
from stages.puzzles.temporal_clue.formal import Statement
from stages.puzzles.temporal_clue.nearby import nearby
from stages.puzzles.temporal_clue.worlds import World, Worlds


class _Witnesses:
    """Worlds other than the solution, by the clues that they break; who breaks one clue alone proves it needed."""

    def __init__(self, clues: list[Statement]) -> None:
        self._clues = clues
        self._broken: dict[frozenset[int], World] = {}

    def look_around(self, encoding: Encoding, world: World, active: list[int]) -> None:
        """Adds `world` and the worlds near it that break few of the `active` clues."""
        near = nearby(encoding.shape, world)
        for worlds in (Worlds.of(encoding.shape, [world]), near):
            broken = np.array([~worlds.holds(self._clues[i]) for i in active]).reshape(len(active), len(worlds))
            few = np.flatnonzero((broken.sum(axis=0) >= 1) & (broken.sum(axis=0) <= 3))
            for column in few:
                which = frozenset(active[row] for row in np.flatnonzero(broken[:, column]))
                if which not in self._broken:
                    self._broken[which] = worlds.world(int(column))

    def needed(self, active: list[int]) -> dict[int, World]:
        """The clues of `active` that are proved needed, each with a world that breaks it alone."""
        left = set(active)
        found: dict[int, World] = {}
        for which, world in self._broken.items():
            alone = which & left
            if len(alone) == 1:
                found.setdefault(next(iter(alone)), world)
        return found


def minimise(encoding: Encoding, world: World, clues: list[Statement]) -> list[Statement] | None:
    """Drops clues, the first ones first, while the others leave `world` as the only one.

    Every clue kept has a witness: another lawful world that all other kept clues allow.

    Args:
        encoding: The rules; the clues are added to it.
        world: The solution, in which all clues hold.
        clues: Candidates, the first to be dropped first.

    Returns:
        The kept clues in the order given, or None if even all of them allow another world.
    """
    literals = [encoding.literal(clue) for clue in clues]
    encoding.require([~literal for literal in encoding.truths(world)])
    if encoding.solve(literals[::-1]) is not None:
        return None
    active = [i for i, literal in enumerate(literals) if literal in set(encoding.core)]
    witnesses = _Witnesses(clues)
    witnesses.look_around(encoding, world, active)
    while True:
        open_clues = [i for i in active if i not in witnesses.needed(active)]
        if not open_clues:
            return [clues[i] for i in active]
        rest = [i for i in active if i != open_clues[0]]
        values = encoding.solve([literals[i] for i in rest[::-1]])
        if values is None:
            core = set(encoding.core)
            active = [i for i in rest if literals[i] in core]
        else:
            witnesses.look_around(encoding, encoding.world(values), active)
