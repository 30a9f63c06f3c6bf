"""Generates puzzles: a random night, true clues about it, and as few of them as still determine it."""

import random
from functools import lru_cache

import numpy as np

from stages.puzzles.puzzle import Puzzle
from stages.puzzles.temporal_clue.candidates import propose
from stages.puzzles.temporal_clue.config import PuzzleConfig
from stages.puzzles.temporal_clue.formal import FormalPuzzle, Question, Scenario, Shape, Statement
from stages.puzzles.temporal_clue.minimise import minimise
from stages.puzzles.temporal_clue.questions import choose_questions
from stages.puzzles.temporal_clue.scenario import draw_scenario, draw_world
from stages.puzzles.temporal_clue.solver import rules
from stages.puzzles.temporal_clue.text import formal_digest, letters, write_prompt
from stages.puzzles.temporal_clue.worlds import World, answer, enumerable, enumerate_worlds

ENUMERATION_LIMIT = 3_000
"""Up to this many worlds, clues are chosen by looking at every world; beyond it, by CP-SAT. Both choose alike."""


@lru_cache(maxsize=20_000)
def _mask(shape: Shape, statement: Statement) -> int:
    """The worlds of `shape` in which `statement` holds, bit i for world i."""
    bits = np.packbits(enumerate_worlds(shape).holds(statement), bitorder="little")
    return int.from_bytes(bits.tobytes(), "little")


def _minimise_by_enumeration(shape: Shape, world: World, clues: list[Statement]) -> list[Statement] | None:
    """Drops clues in order while the others leave `world` alone; None if even all of them do not."""
    masks = [_mask(shape, clue) for clue in clues]
    worlds = enumerate_worlds(shape)
    alone = 1 << int(np.flatnonzero(worlds.same_as(world))[0])
    every = (1 << len(worlds)) - 1
    rest = [every]
    for mask in reversed(masks):
        rest.append(rest[-1] & mask)
    rest.reverse()
    if rest[0] != alone:
        return None
    kept, kept_mask = [], every
    for i, clue in enumerate(clues):
        if kept_mask & rest[i + 1] != alone:
            kept.append(clue)
            kept_mask &= masks[i]
    return kept


def prove_unique(shape: Shape, world: World, clues: list[Statement]) -> bool:
    """Whether CP-SAT proves that the rules and `clues` allow `world` and no other world."""
    encoding = rules(shape).copy()
    for clue in clues:
        encoding.require([encoding.literal(clue)])
    encoding.require([~literal for literal in encoding.truths(world)])
    return encoding.solve() is None


def generate_formal(config: PuzzleConfig, seed: int) -> tuple[FormalPuzzle, World]:
    """A formal puzzle and its only solution, the same for (config, seed) on every machine.

    Raises:
        RuntimeError: CP-SAT refuses the uniqueness that enumeration found; this is a fault of the rules here.
    """
    rng = random.Random(f"temporal_clue:{seed}")
    while True:
        scenario = draw_scenario(config, rng)
        shape = scenario.shape
        world = draw_world(shape, rng)
        candidates = propose(config, shape, world, rng)
        if enumerable(shape, ENUMERATION_LIMIT):
            clues = _minimise_by_enumeration(shape, world, candidates)
            if clues is not None and not prove_unique(shape, world, clues):
                raise RuntimeError(f"the clues of seed {seed} do not determine its solution")
        else:
            clues = minimise(rules(shape).copy(), world, candidates)
        if clues is not None:
            break
    rng.shuffle(clues)
    questions, bonus = choose_questions(config, shape, world, clues, rng)
    return FormalPuzzle(scenario, tuple(clues), questions, bonus), world


def answers(scenario: Scenario, world: World, questions: tuple[Question, ...]) -> dict[str, str]:
    """Letter of each question to its answer in `world`, by name."""
    named = scenario.values()
    given = [named[question.answer_type][answer(scenario.shape, world, question)] for question in questions]
    return dict(zip(letters(len(questions)), given, strict=True))


def difficulty(scenario: Scenario) -> dict[str, int]:
    """The sizes of a scenario by name; one time means no time dimension, no motives is 0."""
    return {
        "suspects": len(scenario.suspects),
        "weapons": len(scenario.weapons),
        "rooms": len(scenario.rooms),
        "times": max(1, len(scenario.times)),
        "motives": len(scenario.motives),
    }


def generate(config: PuzzleConfig, seed: int) -> Puzzle:
    """A puzzle with exactly one solution and no clue to spare; the same for (config, seed) on every machine.

    Args:
        config: The difficulty.
        seed: Any integer; different seeds of a small config may give the same formal puzzle (the same digest).
    """
    formal, world = generate_formal(config, seed)
    digest = formal_digest(formal)
    return Puzzle(
        puzzle_id=f"temporal-clue-{seed}-{digest[:8]}",
        environment="temporal_clue",
        prompt=write_prompt(formal),
        solution=answers(formal.scenario, world, formal.questions + formal.bonus),
        num_clues=len(formal.clues),
        seed=seed,
        digest=digest,
        difficulty=difficulty(formal.scenario),
    )
