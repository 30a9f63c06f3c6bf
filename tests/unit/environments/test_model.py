"""The rules, the truth of statements and the CP-SAT encoding agree with one another and with hand counts."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.formal import Shape
from stages.environments.temporal_clue.generation.scenario import draw_scenario, draw_world
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.proofs.solver import solve
from stages.environments.temporal_clue.worlds import Worlds, enumerate_worlds
from tests.support.puzzle_cases import TWO_ROOMS
from tests.support.random_puzzles import SHARED, SMALL, lawful, random_statement


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
    listed = [worlds.world(i) for i in range(len(worlds))]
    assert len(set(listed)) == len(listed) == count
    assert all(lawful(shape, world) for world in listed)
    encoding = Encoding(shape)
    for _ in listed:
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
