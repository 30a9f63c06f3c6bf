"""Lawful worlds that differ from a given world by one small change.

They are cheap to compute, and often show that a set of clues allows more than one world.
"""

import itertools

import numpy as np

from stages.environments.temporal_clue.formal import Shape
from stages.environments.temporal_clue.worlds import Ints, World, Worlds, reach_table


def nearby(shape: Shape, world: World) -> Worlds:
    """Returns the lawful worlds that differ from a world by one of three changes.

    * One piece, or two pieces that are together, are in another room for some consecutive times.
    * Two suspects have exchanged their motives.
    * Murderer, weapon or time of the murder differ; all pieces are in the same rooms.
    """
    rooms = np.array(world.rooms, dtype=np.int8)
    parts = [_moved(shape, world, rooms), _swapped(shape, world, rooms), _other_murders(shape, world, rooms)]
    changed = Worlds(
        shape,
        np.concatenate([part.rooms for part in parts]),
        np.concatenate([part.motives for part in parts]),
        np.concatenate([part.murderer for part in parts]),
        np.concatenate([part.weapon for part in parts]),
        np.concatenate([part.time for part in parts]),
    )
    return changed.where(changed.lawful())


def _repeated(shape: Shape, world: World, rooms: Ints) -> Worlds:
    """Returns N copies of a world with the rooms [N,P,T]."""
    count = len(rooms)
    return Worlds(
        shape,
        rooms,
        np.tile(np.array(world.motives, dtype=np.int8), (count, 1)),
        np.full(count, world.murderer, dtype=np.int8),
        np.full(count, world.weapon, dtype=np.int8),
        np.full(count, world.time, dtype=np.int8),
    )


def _moved(shape: Shape, world: World, rooms: Ints) -> Worlds:
    reach = reach_table(shape)
    variants: list[Ints] = []
    stretches = [(a, b) for a in range(shape.times) for b in range(a + 1, shape.times + 1)]
    for first, last in stretches:
        part = rooms[:, first:last]
        pairs = [(p, p) for p in range(shape.pieces)]
        pairs += [(p, q) for p, q in itertools.combinations(range(shape.pieces), 2) if (part[p] == part[q]).all()]
        for p, q in pairs:
            fits = np.ones(shape.rooms, dtype=np.bool_)
            for piece in {p, q}:
                if first > 0:
                    fits &= reach[rooms[piece, first - 1]]
                if last < shape.times:
                    fits &= reach[rooms[piece, last]]
            if first + 1 == last or len(set(part[p].tolist())) == 1:
                fits[part[p][0]] = False
            targets = np.flatnonzero(fits)
            changed = np.repeat(rooms[None], len(targets), axis=0)
            changed[:, [p, q], first:last] = targets[:, None, None]
            variants.append(changed)
    return _repeated(shape, world, np.concatenate(variants))


def _swapped(shape: Shape, world: World, rooms: Ints) -> Worlds:
    motives = world.motives
    pairs = [(a, b) for a, b in itertools.combinations(range(len(motives)), 2) if motives[a] != motives[b]]
    swapped = np.tile(np.array(motives, dtype=np.int8), (len(pairs), 1))
    for row, (a, b) in enumerate(pairs):
        swapped[row, a], swapped[row, b] = motives[b], motives[a]
    base = _repeated(shape, world, np.repeat(rooms[None], len(pairs), axis=0))
    return Worlds(shape, base.rooms, swapped, base.murderer, base.weapon, base.time)


def _other_murders(shape: Shape, world: World, rooms: Ints) -> Worlds:
    murder = (world.murderer, world.weapon, world.time)
    murders = itertools.product(range(shape.suspects), range(shape.weapons), range(shape.times))
    others = np.array([other for other in murders if other != murder], dtype=np.int8).reshape(-1, 3)
    base = _repeated(shape, world, np.repeat(rooms[None], len(others), axis=0))
    return Worlds(shape, base.rooms, base.motives, others[:, 0], others[:, 1], others[:, 2])
