"""Writes a derivation: proved statements, each from few clues and earlier statements, that end in the answers."""

import itertools
from dataclasses import dataclass

import numpy as np

from stages.puzzles.temporal_clue.candidates import piece_ref
from stages.puzzles.temporal_clue.formal import (
    At,
    FormalPuzzle,
    HasMotive,
    KilledWith,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Question,
    Ref,
    Scenario,
    Shape,
    Statement,
)
from stages.puzzles.temporal_clue.solver import encode, rules
from stages.puzzles.temporal_clue.text import write_statement
from stages.puzzles.temporal_clue.worlds import World, answer, enumerable, enumerate_worlds

_ENUMERATION_LIMIT = 20_000
_MOST_PREMISES = 3
"""Steps from up to so many premises are looked for exhaustively."""


@dataclass(frozen=True)
class Step:
    """A statement and what it follows from.

    Attributes:
        statement: What is concluded.
        clues: Positions (from 0) of the clues it rests on.
        steps: Positions (from 0) of the earlier steps it rests on.
    """

    statement: Statement
    clues: tuple[int, ...]
    steps: tuple[int, ...]


def derive(puzzle: FormalPuzzle) -> list[Step]:
    """The steps to all answers of `puzzle`, each entailed by the rules and the premises that it names.

    On puzzles whose worlds can be listed, steps rest on as few premises as possible and all that no answer needs are
    left out. On larger ones every answer is one step from a minimal set of clues, by CP-SAT.

    Raises:
        ValueError: The clues do not determine the answers.
    """
    shape = puzzle.scenario.shape
    if enumerable(shape, _ENUMERATION_LIMIT):
        return _short_steps(puzzle)
    return _answers_from_clues(puzzle)


def _answers_as_statements(shape: Shape, world: World, questions: tuple[Question, ...]) -> list[Statement]:
    found: list[Statement] = []
    for question in questions:
        value, ref = answer(shape, world, question), question.ref or Ref("boddy")
        match question.kind:
            case "murderer":
                found.append(MurderedBy(Ref("suspect", value)))
            case "weapon":
                found.append(KilledWith(value))
            case "room":
                found.append(MurderedIn(value))
            case "time":
                found.append(MurderedAt(value))
            case "motive":
                found.append(MurderedBy(Ref("motive", value)))
            case "where":
                found.append(At(ref, value, question.time))
            case "motive_of":
                found.append(HasMotive(ref.index, value))
            case "suspect_of":
                found.append(HasMotive(value, ref.index))
    return found


def _facts(shape: Shape, world: World) -> list[Statement]:
    """Simple statements that are true in `world`: the stones of a derivation."""
    found: list[Statement] = [
        At(piece_ref(shape, piece), room, time)
        for piece, path in enumerate(world.rooms)
        for time, room in enumerate(path)
    ]
    found += [HasMotive(suspect, motive) for suspect, motive in enumerate(world.motives)]
    found += [KilledWith(world.weapon), MurderedBy(Ref("suspect", world.murderer)), MurderedIn(world.room)]
    return found


def _short_steps(puzzle: FormalPuzzle) -> list[Step]:
    shape = puzzle.scenario.shape
    worlds = enumerate_worlds(shape)
    premises = [worlds.holds(clue) for clue in puzzle.clues]
    allowed = np.flatnonzero(np.logical_and.reduce(premises, axis=0, initial=True, where=True))
    if len(allowed) != 1:
        raise ValueError(f"the clues allow {len(allowed)} worlds, not one")
    world = worlds.world(int(allowed[0]))
    targets = _answers_as_statements(shape, world, puzzle.questions + puzzle.bonus)
    pending = {fact: worlds.holds(fact) for fact in [*targets, *_facts(shape, world)]}
    clue_count, steps = len(puzzle.clues), list[Step]()
    missing = set(targets)
    while missing:
        fact, chosen = _easiest(premises, pending)
        del pending[fact]
        missing.discard(fact)
        earlier = tuple(i - clue_count for i in chosen if i >= clue_count)
        steps.append(Step(fact, tuple(i for i in chosen if i < clue_count), earlier))
        premises.append(worlds.holds(fact))
    return _needed(steps, set(targets))


def _easiest(premises: list[np.ndarray], pending: dict[Statement, np.ndarray]) -> tuple[Statement, tuple[int, ...]]:
    """The pending fact that follows from the fewest premises, and those premises."""
    for size in range(_MOST_PREMISES + 1):
        for chosen in itertools.combinations(range(len(premises)), size):
            both = np.logical_and.reduce([premises[i] for i in chosen], axis=0) if chosen else None
            for fact, holds in pending.items():
                if holds.all() if both is None else holds[both].all():
                    return fact, chosen
    fact, holds = next(iter(pending.items()))
    kept = list(range(len(premises)))
    for i in list(kept):
        fewer = [j for j in kept if j != i]
        if holds[np.logical_and.reduce([premises[j] for j in fewer], axis=0)].all():
            kept = fewer
    return fact, tuple(kept)


def _needed(steps: list[Step], targets: set[Statement]) -> list[Step]:
    """`steps` without those that no target rests on."""
    keep = {i for i, step in enumerate(steps) if step.statement in targets}
    for i in range(len(steps) - 1, -1, -1):
        if i in keep:
            keep.update(steps[i].steps)
    position = {old: new for new, old in enumerate(sorted(keep))}
    return [Step(s.statement, s.clues, tuple(position[j] for j in s.steps)) for i, s in enumerate(steps) if i in keep]


def _answers_from_clues(puzzle: FormalPuzzle) -> list[Step]:
    shape = puzzle.scenario.shape
    values = encode(puzzle).solve()
    if values is None:
        raise ValueError("the clues contradict one another")
    encoding = rules(shape).copy()
    world = encoding.world(values)
    literals = [encoding.literal(clue) for clue in puzzle.clues]
    steps: list[Step] = []
    for target in _answers_as_statements(shape, world, puzzle.questions + puzzle.bonus):
        wrong = ~encoding.literal(target)
        if encoding.solve([*literals, wrong]) is not None:
            raise ValueError(f"the clues leave open whether {write_statement(puzzle.scenario, target)}")
        kept = list(range(len(literals)))
        for i in list(kept):
            fewer = [j for j in kept if j != i]
            if encoding.solve([*(literals[j] for j in fewer), wrong]) is None:
                kept = fewer
        steps.append(Step(target, tuple(kept), ()))
    return steps


def write_derivation(scenario: Scenario, steps: list[Step]) -> str:
    """The steps as lines of the clue grammar, each with what it follows from."""
    lines: list[str] = []
    for step in steps:
        sources = [f"clue {i + 1}" for i in step.clues] + [f"step {i + 1}" for i in step.steps]
        lines.append(
            f"{len(lines) + 1}. {write_statement(scenario, step.statement)} ({', '.join(sources) or 'rules'})."
        )
    return "\n".join(lines)
