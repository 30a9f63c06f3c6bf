"""Zebra grids, by looking at every way to fill the houses."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from stages.puzzles import environment
from stages.puzzles.generate import ZebraConfig, generate
from stages.puzzles.zebra.config import TIERS
from stages.puzzles.zebra.family import generate_formal
from stages.puzzles.zebra.formal import Asked, Grid, Houses, InHouse, Related, ZebraPuzzle, holds
from stages.puzzles.zebra.solver import Model
from stages.puzzles.zebra.text import read_prompt, write_prompt

FAMILY = environment.get("zebra")
DIGESTS = ["b11cf7f50fbedc49", "a6b394f2613298e7", "f9ffc0864289ecec"]


def every_world(grid: Grid) -> Houses:
    orders = list(itertools.permutations(range(grid.houses)))
    return np.array(list(itertools.product(orders, repeat=len(grid.attributes))), dtype=np.int8)


def test_by_hand() -> None:
    """Ada is left of the cat's keeper, so she is first, and Bruno keeps the cat in the second house."""
    grid = Grid(("name", "pet"), (("Ada", "Bruno"), ("cat", "ferret")))
    clue = Related((0, 0), "left", (1, 0))
    solution = Model(grid, [clue]).solve([0])
    assert solution is not None
    assert solution.tolist() == [[[0, 1], [1, 0]]]
    prompt = write_prompt(ZebraPuzzle(grid, (clue,), (Asked((0, 0), None), Asked((0, 1), 1))))
    assert "- Ada lives directly to the left of the keeper of the cat\n" in prompt
    puzzle = FAMILY.read("x", 1, prompt, {"A": "first", "B": "cat"})
    assert FAMILY.grade("A. the first house\nB. **Cat**.", puzzle).exact
    assert FAMILY.grade("A. second\nB. ferret", puzzle).accuracy == 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_unique_minimal_and_readable(seed: int) -> None:
    config = ZebraConfig(houses=(2, 4), attributes=(2, 3))
    formal, world = generate_formal(config, seed)
    worlds = every_world(formal.grid)
    truths = np.array([holds(clue, worlds) for clue in formal.clues])
    allowed = np.flatnonzero(truths.all(axis=0))
    assert worlds[allowed].tolist() == world.tolist()
    for i in range(len(formal.clues)):
        assert np.delete(truths, i, axis=0).all(axis=0).sum() > 1
    puzzle = generate(config, seed)
    assert read_prompt(puzzle.prompt) == formal
    assert FAMILY.grade(FAMILY.write_answer(puzzle), puzzle, "strict").exact
    assert FAMILY.grade(FAMILY.write_answer(puzzle), puzzle, "published").exact
    again = FAMILY.read("x", puzzle.num_clues, puzzle.prompt, puzzle.solution)
    assert (again.digest, again.prompt, again.solution) == (puzzle.digest, puzzle.prompt, puzzle.solution)


def test_golden_digests() -> None:
    assert [generate(TIERS["medium"], seed).digest[:16] for seed in range(3)] == DIGESTS


def test_names_what_it_cannot_read() -> None:
    puzzle = generate(TIERS["easy"], 1)
    with pytest.raises(BadInputError, match="clue 1"):
        FAMILY.read("x", 1, puzzle.prompt.replace("Clues:\n\n- ", "Clues:\n\n- Perhaps "), puzzle.solution)
    with pytest.raises(BadInputError, match="Clues:"):
        FAMILY.read("x", 1, "Hello", puzzle.solution)
    with pytest.raises(BadInputError, match="environment"):
        environment.get("chess")
    with pytest.raises(BadInputError, match="zebra"):
        environment.get_deductive("zebra")
    assert holds(InHouse((0, 0), 0, no=True), np.zeros((1, 1, 1), dtype=np.int8)).tolist() == [False]
