"""Generates puzzles: draws a random world, proposes true clues, and keeps a minimal set that determines the world."""

import random
from collections.abc import Collection

from stages.environments.logic_puzzles.minimal import as_bits, greedy
from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.formal import FormalPuzzle, Scenario, Shape, Statement
from stages.environments.temporal_clue.generation.candidates import propose
from stages.environments.temporal_clue.generation.minimise import minimise
from stages.environments.temporal_clue.generation.questions import choose_questions
from stages.environments.temporal_clue.generation.scenario import draw_scenario, draw_world
from stages.environments.temporal_clue.proofs.solver import rules, with_clues
from stages.environments.temporal_clue.worlds import World, enumerable, enumerate_worlds, worlds_where

ENUMERATION_LIMIT = 3_000
"""Largest number of worlds for which clues are chosen by enumeration instead of CP-SAT; both choose the same clues."""


def _minimise_by_enumeration(shape: Shape, world: World, clues: list[Statement]) -> list[Statement] | None:
    """Drops each clue, in order, unless the others would allow a second world, and returns the rest.

    Returns:
        The remaining clues; None if all clues together allow a second world.
    """
    worlds = enumerate_worlds(shape)
    others = as_bits(~worlds.same_as(world))
    kept = greedy([others & ~worlds_where(shape, clue) for clue in clues], others)
    return None if kept is None else [clues[i] for i in kept]


def generate_formal(config: PuzzleConfig, seed: int) -> tuple[FormalPuzzle, World]:
    """Returns a formal puzzle and its only solution, the same for (config, seed) on every machine.

    Raises:
        RuntimeError: See `attempt_puzzle`.
    """
    rng = random.Random(f"temporal_clue:{seed}")
    while True:
        if made := attempt_puzzle(config, draw_scenario(config, rng), rng):
            return made


def attempt_puzzle(
    config: PuzzleConfig, scenario: Scenario, rng: random.Random, preferred: Collection[str] = ()
) -> tuple[FormalPuzzle, World] | None:
    """Returns a puzzle about a random world of a scenario, and the world; None if its candidates allow another world.

    Args:
        preferred: Kinds of clues (classes of `formal`) that the search tries to drop after all others.

    Raises:
        RuntimeError: CP-SAT finds a second world that the enumeration lacks, so their rules differ.
    """
    shape = scenario.shape
    world = draw_world(shape, rng)
    candidates = propose(config, shape, world, rng)
    if preferred:
        candidates.sort(key=lambda clue: type(clue).__name__ in preferred)
    if enumerable(shape, ENUMERATION_LIMIT):
        clues = _minimise_by_enumeration(shape, world, candidates)
        if clues is not None and with_clues(shape, clues).allows_other(world):
            raise RuntimeError(f"the clues {clues} do not determine {world}")
    else:
        clues = minimise(rules(shape).copy(), world, candidates)
    if clues is None:
        return None
    rng.shuffle(clues)
    questions, bonus = choose_questions(config, shape, world, clues, rng)
    return FormalPuzzle(scenario, tuple(clues), questions, bonus), world


def difficulty(scenario: Scenario) -> dict[str, int]:
    """Returns the sizes of a scenario by name; `times` is 1 without a time dimension, `motives` 0 without motives."""
    return {
        "suspects": len(scenario.suspects),
        "weapons": len(scenario.weapons),
        "rooms": len(scenario.rooms),
        "times": max(1, len(scenario.times)),
        "motives": len(scenario.motives),
    }
