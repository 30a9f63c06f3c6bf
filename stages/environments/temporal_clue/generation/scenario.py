"""Draws random scenarios and random worlds."""

import random

from stages.environments.temporal_clue.config import MOTIVES, ROOMS, SUSPECTS, WEAPONS, PuzzleConfig
from stages.environments.temporal_clue.formal import Scenario, Shape
from stages.environments.temporal_clue.worlds import World

MOVE_PROBABILITY = 0.5
"""Probability that a person changes rooms between two times, as in the published generator."""
CARRY_PROBABILITY = 0.8
"""Probability that a suspect who leaves a room takes the weapon along, as in the published generator."""


def draw_scenario(config: PuzzleConfig, rng: random.Random) -> Scenario:
    """Returns a random cast and board within the ranges of `config`, with random numbers of suspects per motive."""
    suspects = rng.randint(*config.suspects)
    rooms = rng.randint(*config.rooms)
    weapons = rng.randint(*config.weapons)
    times = rng.randint(*config.times)
    motives = _draw_motive_counts(config, suspects, rng)
    if config.fixed_cast:
        cast, arms = SUSPECTS[:suspects], WEAPONS[:weapons]
    else:
        cast, arms = tuple(rng.sample(SUSPECTS, suspects)), tuple(rng.sample(WEAPONS, weapons))
    return Scenario(
        suspects=cast,
        weapons=arms,
        rooms=ROOMS[:rooms] if config.fixed_rooms else tuple(rng.sample(ROOMS, rooms)),
        columns=_draw_columns(rooms, rng),
        times=_draw_times(times, rng) if times > 1 else (),
        motives=tuple(rng.sample(MOTIVES, len(motives))),
        motive_counts=motives,
    )


def _draw_motive_counts(config: PuzzleConfig, suspects: int, rng: random.Random) -> tuple[int, ...]:
    least, most = config.motives
    if not config.shared_motives:
        return (1,) * suspects if most >= 2 and (least >= 2 or rng.random() < 0.5) else ()
    count = min(rng.randint(least, most), suspects)
    if count < 2:
        return ()
    drawn = [*range(count), *rng.choices(range(count), k=suspects - count)]
    return tuple(drawn.count(motive) for motive in range(count))


def _draw_columns(rooms: int, rng: random.Random) -> int:
    """Returns the number of columns of a board that is nearly square and at most 4 wide."""
    if rooms <= 2:
        return rng.choice((1, 2))
    if rooms <= 4:
        return 2
    if rooms <= 6:
        return rng.choice((2, 3))
    if rooms <= 9:
        return 3
    return rng.choice((3, 4)) if rooms <= 12 else 4


def _draw_times(count: int, rng: random.Random) -> tuple[str, ...]:
    """Returns labels of times at regular intervals around midnight, such as 11:45 PM, 12:00 AM."""
    step_minutes = rng.choice((15, 30, 60))
    before = 1 + sum(rng.randint(0, 1) for _ in range(count - 2))
    minutes = [((i - before) * step_minutes) % (24 * 60) for i in range(count)]
    return tuple(f"{(m // 60 + 11) % 12 + 1:02d}:{m % 60:02d} {'AM' if m < 720 else 'PM'}" for m in minutes)


def draw_world(shape: Shape, rng: random.Random) -> World:
    """Returns a random world: people walk and carry weapons, and one kills Mr. Boddy in a room without other people."""
    while True:
        suspects = [_walk(shape, rng.randrange(shape.rooms), shape.times, rng) for _ in range(shape.suspects)]
        weapons = [_carried(shape, suspects, rng) for _ in range(shape.weapons)]
        scenes = [
            (murderer, time, weapon)
            for time in range(shape.times)
            for murderer, walk in enumerate(suspects)
            if sum(other[time] == walk[time] for other in suspects) == 1
            for weapon, path in enumerate(weapons)
            if path[time] == walk[time]
        ]
        if scenes:
            break
    murderer, time, weapon = rng.choice(scenes)
    room = suspects[murderer][time]
    before = _walk(shape, room, time + 1, rng)[::-1]
    boddy = [*before, *[room] * (shape.times - time - 1)]
    motives = [motive for motive, count in enumerate(shape.motive_counts) for _ in range(count)]
    rng.shuffle(motives)
    rooms = tuple(tuple(path) for path in (*suspects, *weapons, boddy))
    return World(rooms, tuple(motives), murderer, weapon, time)


def _walk(shape: Shape, start: int, times: int, rng: random.Random) -> list[int]:
    path = [start]
    for _ in range(times - 1):
        path.append(rng.choice(shape.neighbours(path[-1])) if rng.random() < MOVE_PROBABILITY else path[-1])
    return path


def _carried(shape: Shape, suspects: list[list[int]], rng: random.Random) -> list[int]:
    """Returns the rooms of a weapon. Its holder may take it along; then a random suspect in its room holds it."""
    path, holder = [rng.randrange(shape.rooms)], None
    for time in range(1, shape.times):
        room = path[-1]
        if holder is not None and suspects[holder][time] != room and rng.random() < CARRY_PROBABILITY:
            room = suspects[holder][time]
        path.append(room)
        present = [s for s, walk in enumerate(suspects) if walk[time] == room]
        holder = rng.choice(present) if present else None
    return path
