"""The concepts of a derivation: the kinds of clues and the deduction rules that its steps need, each proved."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from stages.environments.temporal_clue.config import CASE_SPLIT
from stages.environments.temporal_clue.formal import FormalPuzzle, Shape, Statement
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.proofs.propagation import Propagation
from stages.environments.temporal_clue.proofs.rules import Rule
from stages.environments.temporal_clue.proofs.solver import rules
from stages.environments.temporal_clue.proofs.steps import ProofStep


@dataclass(frozen=True)
class Concepts:
    """The concepts that a derivation uses, and its size.

    Attributes:
        used: Concepts that at least one step needs: kinds of clues by class name, rules, and `case_split`.
        steps: Number of steps that do more than restate a clue.
        case_splits: Number of steps that do not follow by propagation, so that cases must be tried.
    """

    used: frozenset[str]
    steps: int
    case_splits: int


@lru_cache(maxsize=256)
def _without(shape: Shape, rule: Rule) -> Encoding:
    return Encoding(shape, rule)


def rules_of(shape: Shape) -> tuple[Rule, ...]:
    """Returns the rules that apply to puzzles of a shape."""
    timed = ("stays", "moves", "carrying") if shape.times > 1 else ()
    absent = {*(() if timed else ("stays", "moves", "carrying")), *(() if shape.motive_counts else ("motives",))}
    return tuple(rule for rule in get_args(Rule) if rule not in absent)


def concepts_of(puzzle: FormalPuzzle, steps: Sequence[ProofStep]) -> Concepts:
    """Returns the concepts of a derivation, and proves that each is used.

    A step uses a kind of clue, or a rule, if there is a world in which its other premises and the other rules hold and
    its statement is false. A step needs a case split if unit propagation from its premises does not give its statement.

    Raises:
        ValueError: The premises of a step do not entail it.
    """
    shape = puzzle.scenario.shape
    encoding = rules(shape).copy()
    statements = [*puzzle.clues, *(step.statement for step in steps)]
    literals = [encoding.literal(statement) for statement in statements]
    propagation = Propagation(encoding.model.proto)
    used: set[str] = set()
    deduced = case_splits = 0
    for number, step in enumerate(steps):
        clues = [puzzle.clues[i] for i in step.clues]
        premises = [*clues, *(steps[i].statement for i in step.steps)]
        if _open(encoding, premises, step.statement):
            raise ValueError(f"step {number + 1} does not follow from its premises")
        if premises == [step.statement]:
            continue
        deduced += 1
        for kind in sorted({type(clue).__name__ for clue in clues} - used):
            if _open(encoding, [premise for premise in premises if type(premise).__name__ != kind], step.statement):
                used.add(kind)
        for rule in rules_of(shape):
            if rule not in used and _open(_without(shape, rule), premises, step.statement):
                used.add(rule)
        given = [literals[i] for i in step.clues] + [literals[len(puzzle.clues) + i] for i in step.steps]
        if literals[len(puzzle.clues) + number] not in propagation.closure(given):
            case_splits += 1
    return Concepts(frozenset(used | ({CASE_SPLIT} if case_splits else set())), deduced, case_splits)


def _open(encoding: Encoding, premises: Sequence[Statement], statement: Statement) -> bool:
    """Returns whether a statement can be false in a world in which the premises are true."""
    given = [encoding.literal(premise) for premise in premises]
    return encoding.solve([*given, ~encoding.literal(statement)]) is not None
