"""The rules, the truth of statements and the CP-SAT encoding agree with one another and with hand counts."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.puzzles.temporal_clue.config import PuzzleConfig
from stages.puzzles.temporal_clue.encoding import Encoding
from stages.puzzles.temporal_clue.formal import (
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
from stages.puzzles.temporal_clue.scenario import draw_scenario, draw_world
from stages.puzzles.temporal_clue.solver import solve
from stages.puzzles.temporal_clue.worlds import World, Worlds, enumerate_worlds
from tests.unit.puzzles.cases import TWO_ROOMS

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
    """The rules once more, written without any of the code under test."""
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


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.sampled_from([SMALL, SHARED]))
def test_encoding_agrees_with_evaluation(seed: int, config: PuzzleConfig) -> None:
    """In a drawn world every random statement's literal has the statement's truth, negations included."""
    rng = random.Random(seed)
    shape = draw_scenario(config, rng).shape
    world = draw_world(shape, rng)
    assert lawful(shape, world)
    statements = [random_statement(shape, rng) for _ in range(12)]
    truths = [bool(Worlds.of(shape, [world]).holds(statement)[0]) for statement in statements]
    encoding = Encoding(shape)
    literals = [encoding.literal(statement) for statement in statements]
    values = encoding.solve(encoding.truths(world))
    assert values is not None
    assert encoding.world(values) == world
    assert [bool(values[i]) if i >= 0 else not values[~i] for i in literals] == truths
    for literal, truth in zip(literals, truths, strict=True):
        assert encoding.solve([*encoding.truths(world), ~literal if truth else literal]) is None


@settings(max_examples=30)
@given(st.integers(0, 10**9), st.sampled_from([SMALL, SHARED]))
def test_solutions_are_lawful(seed: int, config: PuzzleConfig) -> None:
    rng = random.Random(seed)
    shape = draw_scenario(config, rng).shape
    encoding = Encoding(shape)
    for _ in range(3):
        statement = random_statement(shape, rng)
        values = encoding.solve([encoding.literal(statement)])
        if values is not None:
            world = encoding.world(values)
            assert lawful(shape, world)
            assert Worlds.of(shape, [world]).holds(statement)[0]


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        (Shape(2, 2, 2, 1), 16),  # 2 ways to part the suspects, 2 murderers, 4 (weapons, murder weapon) at the scene
        (Shape(2, 1, 3, 3), 12),  # 6 ways to part the suspects, 2 murderers, the weapon at the scene
        (Shape(2, 1, 2, 2, 1, (1, 1)), 8),  # 2 x 2, and 2 ways to give the motives
        (Shape(3, 1, 2, 2, 1, (2, 1)), 18),  # one suspect apart: 3 x 2, with 3 ways to give the motives
    ],
)
def test_number_of_worlds(shape: Shape, count: int) -> None:
    worlds = enumerate_worlds(shape)
    found = [worlds.world(i) for i in range(len(worlds))]
    assert len(set(found)) == len(found) == count
    assert all(lawful(shape, world) for world in found)
    encoding = Encoding(shape)
    for _ in found:
        values = encoding.solve()
        assert values is not None
        encoding.require([~literal for literal in encoding.truths(encoding.world(values))])
    assert encoding.solve() is None


def test_two_rooms_by_hand() -> None:
    solved = solve(TWO_ROOMS)
    assert list(solved.answers.values()) == ["Mrs. White", "Lounge", "Billiard Room", "Lounge", "Lounge", "Lounge"]
    assert solved.world_unique and all(solved.unique.values())


def test_each_clue_of_two_rooms_is_needed() -> None:
    shape = TWO_ROOMS.scenario.shape
    worlds = enumerate_worlds(shape)
    for keep in itertools.combinations(TWO_ROOMS.clues, 2):
        assert (worlds.holds(keep[0]) & worlds.holds(keep[1])).sum() > 1
