"""Proposes true clues about a world, each with a priority. The search tries to drop clues of low priority first."""

import random
from collections.abc import Iterator

from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.formal import (
    DIRECTIONS,
    At,
    Beside,
    Carried,
    Direction,
    Either,
    HasMotive,
    Iff,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Ref,
    SameRoom,
    Shape,
    Statement,
    Together,
)
from stages.environments.temporal_clue.worlds import World

Proposal = tuple[float, Statement]
"""A priority and a clue."""


def piece_ref(shape: Shape, piece: int) -> Ref:
    """Returns the reference that names a piece."""
    if piece < shape.suspects:
        return Ref("suspect", piece)
    if piece < shape.boddy:
        return Ref("weapon", piece - shape.suspects)
    return Ref("boddy")


def propose(config: PuzzleConfig, shape: Shape, world: World, rng: random.Random) -> list[Statement]:
    """Returns true clues that determine `world`, in the order in which the search tries to drop them.

    The priorities and the numbers of clues per kind are those of the published generator, so that puzzles have similar
    shares of each kind.
    """
    always_asked = config.questions == "placements"
    direct = [*_murder(shape, world, always_asked), *_placements(config, shape, world), *_motives(world)]
    quota = round(len(direct) / 6) * 2
    candidates = list(direct)
    if config.connectives:
        candidates += _connected(config, shape, world, quota, rng)
    candidates += _meetings(config, shape, world, quota, rng)
    moves = list(_moves(config, shape, world))
    rng.shuffle(moves)
    candidates += moves[:quota]
    candidates += _carries(config, shape, world)
    candidates += _neighbours(shape, world, quota, rng)
    keyed = [(priority + rng.random(), i, clue) for i, (priority, clue) in enumerate(candidates)]
    unique: dict[Statement, None] = {}
    for _, _, clue in sorted(keyed, key=lambda item: item[:2]):
        unique.setdefault(clue)
    return list(unique)


def _murder(shape: Shape, world: World, always_asked: bool) -> Iterator[Proposal]:
    """Yields clues about the murder; `always_asked` leaves out murderer and room, which the questions ask for."""
    if not always_asked:
        yield -0.2, MurderedBy(Ref("suspect", world.murderer))
        yield -0.2, MurderedIn(world.room)
    yield -0.2, KilledWith(world.weapon)
    if shape.times > 1:
        yield -0.2, MurderedAt(world.time)
    if world.motives:
        yield -0.2, MurderedBy(Ref("motive", world.motives[world.murderer]))


def _placements(config: PuzzleConfig, shape: Shape, world: World) -> Iterator[tuple[float, At]]:
    for piece, path in enumerate(world.rooms):
        for time, room in enumerate(path):
            for bonus, ref in _names(config, shape, world, piece):
                yield -0.15 + bonus, At(ref, room, time)


def _names(config: PuzzleConfig, shape: Shape, world: World, piece: int) -> Iterator[tuple[float, Ref]]:
    """Yields the references to a piece, each with its addition to the priority."""
    yield 0.0, piece_ref(shape, piece)
    if not config.referents:
        return
    if piece == world.murderer:
        yield 0.05, Ref("murderer")
    if piece == shape.suspects + world.weapon:
        yield 0.05, Ref("murder_weapon")
    if world.motives and piece < shape.suspects:
        yield 0.0, Ref("motive", world.motives[piece])


def _motives(world: World) -> Iterator[Proposal]:
    for suspect, motive in enumerate(world.motives):
        yield 0.0, HasMotive(suspect, motive)


def _connected(config: PuzzleConfig, shape: Shape, world: World, quota: int, rng: random.Random) -> Iterator[Proposal]:
    truths = [clue for _, clue in _placements(config, shape, world)]

    def false() -> At:
        while True:
            clue = rng.choice(truths)
            if clue.ref.kind == "motive" and shape.motive_counts[clue.ref.index] > 1:
                continue
            room = rng.randrange(shape.rooms)
            if room != clue.room:
                return At(clue.ref, room, clue.time)

    for _ in range(quota):
        pair = [rng.choice(truths), false()]
        rng.shuffle(pair)
        if pair[0].ref != pair[1].ref or pair[0].time != pair[1].time:
            yield -0.05, Either(pair[0], pair[1])
    for i in range(quota):
        first, second = (false(), false()) if i % 2 else (rng.choice(truths), rng.choice(truths))
        if first.ref != second.ref:
            yield 0.05, Iff(first, second)


def _meetings(config: PuzzleConfig, shape: Shape, world: World, quota: int, rng: random.Random) -> Iterator[Proposal]:
    """Yields clues about pairs of pieces in the same room."""
    scenes: list[tuple[int, int, list[int]]] = []
    for time in range(shape.times):
        for room in range(shape.rooms):
            present = [piece for piece in range(shape.pieces) if world.rooms[piece][time] == room]
            if len(present) > 1:
                scenes.append((time, room, present))
    rng.shuffle(scenes)
    for time, room, present in scenes[:quota]:
        first, second = rng.sample(present, 2)
        name, other, extra = piece_ref(shape, first), piece_ref(shape, second), 0.0
        if config.referents and first == world.murderer and second >= shape.suspects and rng.random() < 0.66:
            if shape.times == 1 and second == shape.boddy:
                continue
            name, extra = Ref("murderer"), 1.5
        elif config.referents and world.motives and first < shape.suspects <= second and rng.random() < 0.5:
            name = Ref("motive", world.motives[first])
        weapon_second = shape.suspects <= second < shape.boddy
        if config.referents and first == shape.suspects + world.weapon and not weapon_second and rng.random() < 0.66:
            if shape.times == 1 and second == shape.boddy:
                continue
            name, extra = Ref("murder_weapon"), 1.5
        if shape.times == 1 or rng.random() < 0.5:
            yield 0.5 + extra, SameRoom(name, other, time)
        else:
            yield 0.8 + extra, Together(name, other, room)


def _moves(config: PuzzleConfig, shape: Shape, world: World) -> Iterator[Proposal]:
    for suspect in range(shape.suspects):
        path = world.rooms[suspect]
        for time in range(1, shape.times):
            if path[time] != path[time - 1]:
                for _, ref in _names(config, shape, world, suspect):
                    yield 0.2 if ref.kind == "murderer" else 0.1, Moved(ref, path[time - 1], path[time], time)


def _carries(config: PuzzleConfig, shape: Shape, world: World) -> Iterator[Proposal]:
    for weapon in range(shape.suspects, shape.boddy):
        path = world.rooms[weapon]
        for time in range(1, shape.times):
            move = (path[time - 1], path[time])
            carriers = [s for s in range(shape.suspects) if (world.rooms[s][time - 1], world.rooms[s][time]) == move]
            if move[0] == move[1]:
                continue
            thing = piece_ref(shape, weapon)
            for suspect in carriers[:1]:
                for _, ref in _names(config, shape, world, suspect):
                    yield 0.35 if ref.kind == "murderer" else 0.2, Carried(ref, thing, *move, time)
                if config.referents and weapon == shape.suspects + world.weapon:
                    yield 0.35, Carried(Ref("suspect", suspect), Ref("murder_weapon"), *move, time)


def _neighbours(shape: Shape, world: World, quota: int, rng: random.Random) -> Iterator[Proposal]:
    for _ in range(quota):
        time = rng.randrange(shape.times)
        occupied = sorted({path[time] for path in world.rooms})
        if len(occupied) < 2:
            continue
        here, there = rng.sample(occupied, 2)
        facing: list[Direction] = [direction for direction in DIRECTIONS if shape.beside(there, direction) == here]
        if not facing:
            continue
        first = rng.choice([p for p, path in enumerate(world.rooms) if path[time] == here])
        second = rng.choice([p for p, path in enumerate(world.rooms) if path[time] == there])
        yield 0.2, Beside(piece_ref(shape, first), facing[0], piece_ref(shape, second), time)
