"""Random statements, and the rules of a puzzle, written again without any of the code under test."""

import random

from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.formal import (
    DIRECTIONS,
    At,
    Beside,
    Carried,
    Either,
    HasMotive,
    Iff,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Not,
    Ref,
    SameRoom,
    Shape,
    Statement,
    Together,
)
from stages.environments.temporal_clue.worlds import World

SMALL = PuzzleConfig(suspects=(2, 4), weapons=(1, 3), rooms=(2, 6), times=(1, 4), motives=(0, 4))
SHARED = SMALL.model_copy(update={"shared_motives": True})


def random_ref(shape: Shape, rng: random.Random) -> Ref:
    kinds = ["suspect", "weapon", "boddy", "murderer", "murder_weapon"] + ["motive"] * bool(shape.motive_counts)
    kind = rng.choice(kinds)
    count = {"suspect": shape.suspects, "weapon": shape.weapons, "motive": len(shape.motive_counts)}.get(kind, 1)
    return Ref(kind, rng.randrange(count))  # type: ignore[arg-type]


def random_statement(shape: Shape, rng: random.Random, depth: int = 0) -> Statement:
    room, other, time = rng.randrange(shape.rooms), rng.randrange(shape.rooms), rng.randrange(shape.times)
    first, second = random_ref(shape, rng), random_ref(shape, rng)
    suspect, weapon = Ref("suspect", rng.randrange(shape.suspects)), Ref("weapon", rng.randrange(shape.weapons))
    options: list[Statement] = [
        At(first, room, time),
        SameRoom(first, second, time),
        Beside(first, rng.choice(DIRECTIONS), second, time),
        Together(first, second, room),
        KilledWith(weapon.index),
        MurderedBy(suspect),
        MurderedIn(room),
    ]
    if shape.times > 1:
        later = rng.randrange(1, shape.times)
        options.append(MurderedAt(time))
        options += [Moved(first, room, other, later), Carried(suspect, weapon, room, other, later)]
        options += [Carried(Ref("murderer"), Ref("murder_weapon"), room, other, later)]
    if shape.motive_counts:
        motive = rng.randrange(len(shape.motive_counts))
        options += [HasMotive(suspect.index, motive), MurderedBy(Ref("motive", motive))]
        if shape.times > 1:
            options.append(Carried(Ref("motive", motive), weapon, room, other, rng.randrange(1, shape.times)))
    if depth == 0:
        parts = random_statement(shape, rng, 1), random_statement(shape, rng, 1)
        options += [Not(parts[0]), Either(*parts), Iff(*parts)]
    return rng.choice(options)


def lawful(shape: Shape, world: World) -> bool:
    """Returns whether a world obeys the rules, which are written again without any of the code under test."""
    suspects, weapons, boddy = world.rooms[: shape.suspects], world.rooms[shape.suspects : -1], world.rooms[-1]
    scene = boddy[world.time]
    present = [s for s, path in enumerate(suspects) if path[world.time] == scene]
    if present != [world.murderer] or weapons[world.weapon][world.time] != scene:
        return False
    if any(room != scene for room in boddy[world.time :]):
        return False

    def near(a: int, b: int) -> bool:
        (y, x), (v, u) = divmod(a, shape.columns), divmod(b, shape.columns)
        return abs(y - v) + abs(x - u) <= 1

    steps = range(1, shape.times)
    if not all(near(path[t - 1], path[t]) for path in (*suspects, boddy) for t in steps):
        return False
    carried = all(
        path[t - 1] == path[t] or any((s[t - 1], s[t]) == (path[t - 1], path[t]) for s in suspects)
        for path in weapons
        for t in steps
    )
    return carried and sorted(world.motives) == [m for m, n in enumerate(shape.motive_counts) for _ in range(n)]
