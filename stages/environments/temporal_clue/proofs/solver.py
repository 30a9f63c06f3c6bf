"""Solves formal puzzles and proves which answers are unique."""

import time
from dataclasses import dataclass
from functools import lru_cache

from stages.environments.solver_tool import LIMIT, NO_RESULT
from stages.environments.temporal_clue.formal import At, FormalPuzzle, MurderedBy, Question, Ref, Shape
from stages.environments.temporal_clue.language.text import letters, write_statement
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.proofs.encoding import Literal as BooleanLiteral
from stages.environments.temporal_clue.proofs.steps import answer_statements
from stages.environments.temporal_clue.worlds import World, answer


@dataclass(frozen=True)
class Solved:
    """The result of solving a puzzle.

    Attributes:
        world: A world that the clues allow, or None if there is none.
        answers: Names of the answers in that world, by letter.
        unique: Whether every world that the clues allow has the same answer (proved), by letter.
        world_unique: Whether the clues allow no other world (proved).
        seconds: Wall time of building and solving the model.
    """

    world: World | None
    answers: dict[str, str]
    unique: dict[str, bool]
    world_unique: bool
    seconds: float


@lru_cache(maxsize=32)
def rules(shape: Shape) -> Encoding:
    """Returns the rules for a shape. The result is shared, so copy it before you add clues."""
    return Encoding(shape)


def encode(puzzle: FormalPuzzle) -> Encoding:
    """Returns the rules and the clues of a puzzle."""
    encoding = rules(puzzle.scenario.shape).copy()
    for clue in puzzle.clues:
        encoding.require([encoding.literal(clue)])
    return encoding


def answer_literal(encoding: Encoding, question: Question, value: int) -> BooleanLiteral:
    """Returns the literal that is true if the answer to a question is number `value` of its answer type."""
    ref = question.ref or Ref("boddy")
    match question.kind:
        case "murderer":
            return encoding.murderer[value]
        case "weapon":
            return encoding.weapon[value]
        case "room":
            return encoding.at[encoding.shape.boddy][-1][value]
        case "time":
            return encoding.time[value]
        case "motive":
            return encoding.literal(MurderedBy(Ref("motive", value)))
        case "where":
            return encoding.literal(At(ref, value, question.time))
        case "motive_of":
            return encoding.motive[ref.index][value]
        case "suspect_of":
            return encoding.motive[value][ref.index]


def solve(puzzle: FormalPuzzle) -> Solved:
    """Finds a solution and checks by proof whether it is unique: as a whole or, if it is not, letter by letter."""
    started = time.perf_counter()
    encoding = encode(puzzle)
    values = encoding.solve()
    if values is None:
        return Solved(None, {}, {}, False, time.perf_counter() - started)
    world = encoding.world(values)
    scenario, questions = puzzle.scenario, puzzle.questions + puzzle.bonus
    named = scenario.values()
    names = letters(len(questions))
    indices = [answer(scenario.shape, world, question) for question in questions]
    lettered = list(zip(names, questions, indices, strict=True))
    answers = {letter: named[question.answer_type][value] for letter, question, value in lettered}
    whole = encoding.copy()
    whole.require([~literal for literal in whole.truths(world)])
    world_unique = whole.solve() is None
    unique = dict.fromkeys(names, world_unique)
    if not world_unique:
        for letter, question, value in lettered:
            unique[letter] = encoding.solve([~answer_literal(encoding, question, value)]) is None
    return Solved(world, answers, unique, world_unique, time.perf_counter() - started)


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
        shape, world = puzzle.scenario.shape, encoding.world(values)
        literals = [answer_literal(encoding, question, answer(shape, world, question)) for question in questions]
        shared = [encoding.solve([~literal]) is None for literal in literals]
    except TimeoutError:
        return [NO_RESULT]
    statements = zip(answer_statements(shape, world, questions), shared, strict=True)
    return [write_statement(puzzle.scenario, statement) for statement, proved in statements if proved]
