"""Writes derivations: proved statements, each from a few clues and earlier statements, up to the answers."""

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from stages.environments.logic_puzzles.lines import cited_line, terse_line
from stages.environments.logic_puzzles.minimal import drop_needless
from stages.environments.puzzle import Style
from stages.environments.temporal_clue.formal import FormalPuzzle, Statement
from stages.environments.temporal_clue.language.text import write_statement
from stages.environments.temporal_clue.proofs.chain import chained_steps
from stages.environments.temporal_clue.proofs.steps import ProofStep, answer_statements, facts_of
from stages.environments.temporal_clue.worlds import enumerable, enumerate_worlds, worlds_where

_ENUMERATION_LIMIT = 20_000
_MOST_PREMISES = 3
"""Largest number of premises for which steps are searched exhaustively."""


def derive(puzzle: FormalPuzzle, *, from_steps: bool = False) -> list[ProofStep]:
    """Returns the steps to all answers of a puzzle. The rules and the premises of a step entail it.

    If the worlds of a puzzle can be listed, each step has the fewest possible premises (if that is at most three). In
    all other puzzles (see `chain`), no premise of a step can be dropped, and with more than 30 clues the answers are
    the only steps. Steps that no answer needs are left out.

    Args:
        puzzle: The puzzle.
        from_steps: Whether earlier steps are preferred to clues among equally small sets of premises, so that a step
            is close to the facts before it. Puzzles of `chain` ignore it.

    Raises:
        ValueError: The clues do not determine the answers.
    """
    shape = puzzle.scenario.shape
    if enumerable(shape, _ENUMERATION_LIMIT):
        return _short_steps(puzzle, from_steps)
    return chained_steps(puzzle)


def _short_steps(puzzle: FormalPuzzle, from_steps: bool) -> list[ProofStep]:
    shape = puzzle.scenario.shape
    worlds = enumerate_worlds(shape)
    everything = (1 << len(worlds)) - 1
    premises = [worlds_where(shape, clue) for clue in puzzle.clues]
    allowed = reduce(and_, premises, everything)
    if allowed.bit_count() != 1:
        raise ValueError(f"the clues allow {allowed.bit_count()} worlds, not one")
    world = worlds.world(allowed.bit_length() - 1)
    targets = answer_statements(shape, world, puzzle.questions + puzzle.bonus)
    pending = {fact: everything ^ worlds_where(shape, fact) for fact in [*targets, *facts_of(shape, world)]}
    clue_count, steps = len(puzzle.clues), list[ProofStep]()
    missing = set(targets)
    while missing:
        order = range(len(premises))
        order = [*order[clue_count:], *order[:clue_count]] if from_steps else order
        fact, chosen = _easiest(premises, everything, pending, order)
        premises.append(everything ^ pending.pop(fact))
        missing.discard(fact)
        earlier = tuple(i - clue_count for i in chosen if i >= clue_count)
        steps.append(ProofStep(fact, tuple(i for i in chosen if i < clue_count), earlier))
    return _needed(steps, set(targets))


def _easiest(
    premises: Sequence[int], everything: int, pending: Mapping[Statement, int], order: Sequence[int]
) -> tuple[Statement, tuple[int, ...]]:
    """Returns the pending fact that follows from the fewest premises, and the positions of these premises.

    Worlds are bits (see `worlds_where`).

    Args:
        premises: The worlds in which each premise is true.
        everything: All worlds.
        pending: The worlds in which each fact is false.
        order: Positions of all premises; among combinations of one size the first in this order is taken.
    """
    for size in range(_MOST_PREMISES + 1):
        for chosen in itertools.combinations(order, size):
            allowed = reduce(and_, (premises[i] for i in chosen), everything)
            for fact, false in pending.items():
                if not allowed & false:
                    return fact, chosen
    fact, false = next(iter(pending.items()))
    latest_first = range(len(premises) - 1, -1, -1)
    kept = drop_needless(latest_first, lambda some: not reduce(and_, (premises[i] for i in some), false))
    return fact, tuple(reversed(kept))


def _needed(steps: list[ProofStep], targets: set[Statement]) -> list[ProofStep]:
    """Returns the steps without those that no target depends on."""
    keep = {i for i, step in enumerate(steps) if step.statement in targets}
    for i in range(len(steps) - 1, -1, -1):
        if i in keep:
            keep.update(steps[i].steps)
    position = {old: new for new, old in enumerate(sorted(keep))}
    return [
        ProofStep(s.statement, s.clues, tuple(position[j] for j in s.steps)) for i, s in enumerate(steps) if i in keep
    ]


def write_derivation(puzzle: FormalPuzzle, steps: list[ProofStep], style: Style = "plain") -> str:
    """Returns the steps as lines in the grammar of clues, each with its premises.

    Args:
        puzzle: The puzzle.
        steps: The steps of `derive`.
        style: See `stages.environments.puzzle.Style`.
    """
    write = {"plain": _plain_line, "terse": _terse_line, "cited": _cited_line, "bare": _bare_line}[style]
    return "\n".join(write(puzzle, steps, number) for number in range(len(steps)))


def _plain_line(puzzle: FormalPuzzle, steps: list[ProofStep], number: int) -> str:
    step = steps[number]
    sources = [f"clue {i + 1}" for i in step.clues] + [f"step {i + 1}" for i in step.steps]
    statement = write_statement(puzzle.scenario, step.statement)
    return f"{number + 1}. {statement} ({', '.join(sources) or 'rules'})."


def _terse_line(puzzle: FormalPuzzle, steps: list[ProofStep], number: int) -> str:
    step = steps[number]
    statement = write_statement(puzzle.scenario, step.statement)
    return terse_line(number, [str(i + 1) for i in step.clues] + [f"s{i + 1}" for i in step.steps], statement)


def _bare_line(puzzle: FormalPuzzle, steps: list[ProofStep], number: int) -> str:
    return write_statement(puzzle.scenario, steps[number].statement)


def _cited_line(puzzle: FormalPuzzle, steps: list[ProofStep], number: int) -> str:
    step = steps[number]
    premises = [puzzle.clues[i] for i in step.clues] + [steps[i].statement for i in step.steps]
    words = [write_statement(puzzle.scenario, premise) for premise in premises]
    return cited_line(words, write_statement(puzzle.scenario, step.statement))
