"""Solves formal puzzles and proves which answers are unique."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from stages.environments.solver_tool import LIMIT, NO_RESULT
from stages.environments.temporal_clue.formal import FormalPuzzle, Shape, Statement
from stages.environments.temporal_clue.language.text import write_statement
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.proofs.steps import answer_statements, answers_in
from stages.environments.temporal_clue.worlds import World


@dataclass(frozen=True)
class Solved:
    """The result of solving a puzzle.

    Attributes:
        world: A world that the clues allow, or None if there is none.
        answers: Names of the answers in that world, by letter.
        unique: Whether every world that the clues allow has the same answer (proved), by letter.
        world_unique: Whether the clues allow no other world (proved).
    """

    world: World | None
    answers: dict[str, str]
    unique: dict[str, bool]
    world_unique: bool


@lru_cache(maxsize=32)
def rules(shape: Shape) -> Encoding:
    """Returns the rules for a shape. The result is shared, so copy it before you add clues."""
    return Encoding(shape)


def with_clues(shape: Shape, clues: Iterable[Statement]) -> Encoding:
    """Returns the rules for a shape and some clues."""
    encoding = rules(shape).copy()
    for clue in clues:
        encoding.require([encoding.literal(clue)])
    return encoding


def encode(puzzle: FormalPuzzle) -> Encoding:
    """Returns the rules and the clues of a puzzle."""
    return with_clues(puzzle.scenario.shape, puzzle.clues)


def solve(puzzle: FormalPuzzle) -> Solved:
    """Finds a solution and checks by proof whether it is unique: as a whole or, if it is not, letter by letter."""
    encoding = encode(puzzle)
    values = encoding.solve()
    if values is None:
        return Solved(None, {}, {}, False)
    scenario, world, questions = puzzle.scenario, encoding.world(values), puzzle.questions + puzzle.bonus
    answers, world_unique = answers_in(scenario, world, questions), not encoding.allows_other(world)
    unique = dict.fromkeys(answers, world_unique)
    if not world_unique:
        statements = answer_statements(scenario.shape, world, questions)
        for letter, statement in zip(answers, statements, strict=True):
            unique[letter] = encoding.solve([~encoding.literal(statement)]) is None
    return Solved(world, answers, unique, world_unique)


def needless_clues(puzzle: FormalPuzzle, world: World) -> tuple[int, ...]:
    """Returns numbers (from 1) of the clues that can each be dropped while `world` stays the only world (proved)."""
    encoding = rules(puzzle.scenario.shape).copy()
    literals = [encoding.literal(clue) for clue in puzzle.clues]
    encoding.require([~literal for literal in encoding.truths(world)])
    return tuple(i + 1 for i in range(len(literals)) if encoding.solve(literals[:i] + literals[i + 1 :]) is None)


@lru_cache(maxsize=4096)
def shared_answers(puzzle: FormalPuzzle) -> list[str] | None:
    """Returns the answers that all worlds of a puzzle's clues share, as sentences.

    Args:
        puzzle: The puzzle; its clues may leave answers open or contradict one another.

    Returns:
        The sentences in the order of the questions, or `NO_RESULT` if the proofs would take more than
        `stages.environments.solver_tool.LIMIT`; None if there is no world.
    """
    questions = puzzle.questions + puzzle.bonus
    encoding = encode(puzzle)
    encoding.limit = LIMIT
    try:
        values = encoding.solve()
        if values is None:
            return None
        statements = answer_statements(puzzle.scenario.shape, encoding.world(values), questions)
        literals = [encoding.literal(statement) for statement in statements]
        shared = [encoding.solve([~literal]) is None for literal in literals]
    except TimeoutError:
        return [NO_RESULT]
    proved = itertools.compress(statements, shared)
    return [write_statement(puzzle.scenario, statement) for statement in proved]
