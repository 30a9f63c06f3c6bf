"""Generated puzzles: the same for a seed, uniquely solvable, and without a clue to spare."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.environments import environment
from stages.environments.generate import TIERS, PuzzleConfig, generate
from stages.environments.temporal_clue.generation.generate import generate_formal
from stages.environments.temporal_clue.language.reader import read_formal
from stages.environments.temporal_clue.proofs.solver import solve
from stages.environments.temporal_clue.worlds import enumerate_worlds


@settings(max_examples=80)
@given(st.integers(0, 10**9), st.sampled_from(["reduced", "easy"]))
def test_unique_and_minimal_by_enumeration(seed: int, tier: str) -> None:
    formal, world = generate_formal(TIERS[tier], seed)
    worlds = enumerate_worlds(formal.scenario.shape)
    truths = np.array([worlds.holds(clue) for clue in formal.clues])
    allowed = np.flatnonzero(truths.all(axis=0))
    assert [worlds.world(int(i)) for i in allowed] == [world]
    for i in range(len(formal.clues)):
        assert np.delete(truths, i, axis=0).all(axis=0).sum() > 1


@settings(max_examples=6)
@given(st.integers(0, 10**9))
def test_unique_and_minimal_by_solver(seed: int) -> None:
    config = PuzzleConfig(suspects=(3, 3), weapons=(2, 2), rooms=(4, 4), times=(2, 3), motives=(3, 3))
    formal, world = generate_formal(config, seed)
    solved = solve(formal)
    assert solved.world_unique
    assert solved.world == world
    for i in range(len(formal.clues)):
        fewer = type(formal)(formal.scenario, formal.clues[:i] + formal.clues[i + 1 :], formal.questions, formal.bonus)
        assert not solve(fewer).world_unique


@pytest.mark.parametrize("tier", ["reduced", "easy", "small"])
def test_round_trip(tier: str) -> None:
    for seed in range(5):
        formal, _ = generate_formal(TIERS[tier], seed)
        puzzle = generate(TIERS[tier], seed)
        reading = read_formal(puzzle.prompt)
        assert not reading.unread
        assert reading.puzzle == formal
        solved = solve(reading.puzzle)
        assert solved.answers == puzzle.solution
        assert puzzle.num_clues == len(formal.clues)
        again = environment.get(puzzle.environment).read("x", puzzle.num_clues, puzzle.prompt, puzzle.solution)
        assert (again.digest, again.difficulty) == (puzzle.digest, puzzle.difficulty)


def test_reduced_asks_six_fixed_questions() -> None:
    puzzle = generate(pickle.loads(pickle.dumps(TIERS["reduced"])), 7)
    questions = [line for line in puzzle.prompt.splitlines() if line.endswith("?")]
    assert questions == [
        "A. Who murdered Mr. Boddy?",
        "B. Where was the murder committed?",
        "C. Where was Miss Scarlet?",
        "D. Where was Mr. Green?",
        "E. Where was the Candlestick?",
        "F. Where was the Knife?",
    ]
    assert "if and only if" not in puzzle.prompt
    assert "motive" not in puzzle.prompt


def test_config_refuses_what_the_game_has_not() -> None:
    for wrong in ({"suspects": (1, 2)}, {"rooms": (3, 2)}, {"rooms": (2, 18)}, {"sizes": 3}):
        with pytest.raises(ValidationError):
            PuzzleConfig.model_validate(wrong)


@pytest.mark.parametrize("tier", ["reduced", "easy"])
def test_seeds_differ(tier: str) -> None:
    assert len({generate(TIERS[tier], seed).digest for seed in range(100)}) > 90
