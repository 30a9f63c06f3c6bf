"""Derives the answers of puzzles with too many worlds to list. CP-SAT proves facts; known worlds refute others.

Clues are added one by one, the simplest first. Each time, the search finds the simple facts that follow from the clues
so far. A fact may follow if it is true in every known world that these clues allow; one solve proves all such facts or
finds a new world. Facts that follow from the same clues are sorted by the number of clues that each needs, judged by
the known worlds. Then the search goes back from the answers and explains each fact by a minimal set of clues and
earlier facts.
"""

from collections.abc import Iterable, Sequence

from stages.environments.logic_puzzles.minimal import as_bits
from stages.environments.temporal_clue.formal import (
    At,
    Carried,
    Either,
    FormalPuzzle,
    HasMotive,
    Iff,
    KilledWith,
    Moved,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Statement,
    Together,
)
from stages.environments.temporal_clue.generation.nearby import nearby
from stages.environments.temporal_clue.language.text import canonical, write_statement
from stages.environments.temporal_clue.proofs.solver import encode, rules
from stages.environments.temporal_clue.proofs.steps import ProofStep, answer_statements, facts_of
from stages.environments.temporal_clue.worlds import Worlds

_SIMPLE = (At, HasMotive, MurderedBy, KilledWith, MurderedIn, MurderedAt)
_COMPOUND = (Together, Either, Iff)
_MOST_WORLDS = 40_000
"""Number of known worlds above which the worlds near a new one are not added."""
_MOST_CLUES = 30
"""Number of clues above which the answers are the only steps, because other facts are many and need many premises."""
_MOST_PROOFS = 600
"""Number of proofs for dropping premises above which the answers are the only steps."""


def chained_steps(puzzle: FormalPuzzle) -> list[ProofStep]:
    """Returns the steps to all answers of a puzzle, which are the same on every machine.

    Raises:
        ValueError: The clues contradict one another, or do not determine the answers.
    """
    values = encode(puzzle).solve()
    if values is None:
        raise ValueError("the clues contradict one another")
    if len(puzzle.clues) <= _MOST_CLUES:
        try:
            return _Chain(puzzle, values, _MOST_PROOFS).steps()
        except _TooLongError:
            pass
    return _Chain(puzzle, values, None).steps()


class _TooLongError(Exception):
    """A derivation needs more proofs than it may use."""


class _Known:
    """Known worlds, as bits of integers: bit i stands for world i."""

    def __init__(self) -> None:
        self._parts: list[Worlds] = []
        self._false: dict[Statement, tuple[int, int, int]] = {}
        self.count = 0

    def add(self, worlds: Worlds) -> None:
        """Adds N worlds."""
        self._parts.append(worlds)
        self.count += len(worlds)

    def false(self, statement: Statement) -> int:
        """Returns the known worlds in which a statement is false."""
        mask, size, done = self._false.get(statement, (0, 0, 0))
        for worlds in self._parts[done:]:
            mask |= as_bits(~worlds.holds(statement)) << size
            size += len(worlds)
        self._false[statement] = mask, size, len(self._parts)
        return mask

    def refute(self, fact: Statement, premises: Iterable[Statement]) -> bool:
        """Returns whether a fact is false in a known world in which all premises are true."""
        wrong = self.false(fact)
        for premise in premises:
            wrong &= ~self.false(premise)
        return wrong != 0

    def needed(self, fact: Statement, premises: Sequence[Statement]) -> int:
        """Returns the number of needed premises: without one, the others allow a known world where `fact` is false."""
        once = twice = 0  # worlds that at least one premise rules out, and that at least two rule out
        masks = [self.false(premise) for premise in premises]
        for mask in masks:
            twice |= once & mask
            once |= mask
        alone = self.false(fact) & once & ~twice
        return sum(mask & alone != 0 for mask in masks)


class _Chain:
    """The derivation of one puzzle.

    Args:
        puzzle: The puzzle.
        values: Values of all variables in a world that the clues allow.
        proofs: Number of proofs that may be used to drop premises. None sets no limit and makes the answers the only
            facts.
    """

    def __init__(self, puzzle: FormalPuzzle, values: Sequence[int], proofs: int | None) -> None:
        self._puzzle, self._answers_only, self._proofs_left = puzzle, proofs is None, proofs
        self._encoding = encoding = rules(puzzle.scenario.shape).copy()
        self._world = encoding.world(values)
        self._order = sorted(range(len(puzzle.clues)), key=lambda i: _difficulty(puzzle.clues[i]))
        self._clues = [puzzle.clues[i] for i in self._order]
        self._targets = answer_statements(encoding.shape, self._world, puzzle.questions + puzzle.bonus)
        self._known = _Known()
        self._known.add(nearby(encoding.shape, self._world))

    def _refuted(self, facts: Sequence[Statement], premises: Sequence[Statement]) -> bool:
        """Returns whether a world exists in which the premises are true and one of the facts is false, by one solve.

        That world is added to the known worlds.
        """
        literal = self._encoding.literal
        values = self._encoding.solve([literal(p) for p in premises], some=[~literal(fact) for fact in facts])
        if values is None:
            return False
        other = self._encoding.world(values)
        self._known.add(Worlds.of(self._encoding.shape, [other]))
        if self._known.count < _MOST_WORLDS:
            self._known.add(nearby(self._encoding.shape, other))
        return True

    def _facts_in_order(self) -> list[tuple[Statement, int]]:
        """Returns the facts in the order in which they follow, each with the number of first clues that entail it."""
        scenario = self._puzzle.scenario
        stated = {canonical(scenario, clue) for clue in self._clues}
        others = [fact for fact in facts_of(scenario.shape, self._world) if canonical(scenario, fact) not in stated]
        pending = list(dict.fromkeys(self._targets if self._answers_only else [*self._targets, *others]))
        facts: list[tuple[Statement, int]] = []
        for count in range(len(self._clues) if self._answers_only else 0, len(self._clues) + 1):
            clues = self._clues[:count]
            entailed = [fact for fact in pending if not self._known.refute(fact, clues)]
            while entailed and self._refuted(entailed, clues):
                entailed = [fact for fact in entailed if not self._known.refute(fact, clues)]
            needed = {fact: self._known.needed(fact, clues) for fact in entailed}
            entailed.sort(key=needed.__getitem__)
            facts += [(fact, count) for fact in entailed]
            settled = set(entailed)
            pending = [fact for fact in pending if fact not in settled]
            if not any(target in pending for target in self._targets):
                return facts
        missing = next(target for target in self._targets if target in pending)
        raise ValueError(f"the clues leave open whether {write_statement(scenario, missing)}")

    def steps(self) -> list[ProofStep]:
        """Returns the steps that the answers need.

        Raises:
            ValueError: The clues do not determine an answer.
            _TooLongError: More proofs are needed than allowed.
        """
        facts = self._facts_in_order()
        position = {fact: i for i, (fact, _) in enumerate(facts)}
        premises: dict[int, tuple[list[int], list[int]]] = {}
        unexplained = [position[target] for target in self._targets]
        while unexplained:
            i = unexplained.pop()
            if i not in premises:
                premises[i] = self._explained(facts[i][0], facts[i][1], [fact for fact, _ in facts[:i]])
                unexplained += premises[i][1]
        number = {i: n for n, i in enumerate(sorted(premises))}
        return [
            ProofStep(
                facts[i][0], tuple(sorted(self._order[c] for c in clues)), tuple(sorted(number[j] for j in earlier))
            )
            for i, (clues, earlier) in sorted(premises.items())
        ]

    def _explained(self, fact: Statement, count: int, earlier: list[Statement]) -> tuple[list[int], list[int]]:
        """Returns positions of clues (of the first `count`) and of earlier facts from which a fact follows.

        Two orders are tried, facts dropped first and clues dropped first; the one that leaves fewer premises is used.
        """
        clues, facts = list(range(count)), list(range(count, count + len(earlier)))
        premises = [*self._clues[:count], *earlier]
        orders = (
            [facts + clues, clues[:-1] + facts + clues[-1:]] if facts and not self._answers_only else [clues + facts]
        )
        kept = min((self._kept(fact, premises, order) for order in orders), key=len)
        return [i for i in kept if i < count], [i - count for i in kept if i >= count]

    def _kept(self, fact: Statement, premises: list[Statement], order: list[int]) -> list[int]:
        """Drops the premises that are not needed and returns the positions of the rest, in `order`.

        Halves are dropped first, which is fast if most premises are not needed. If clues are the only premises, more
        than half of them are needed, so they are dropped one by one.
        """
        kept = dict.fromkeys(order)
        blocks = [[i] for i in reversed(order)] if self._answers_only else [order]
        while blocks:
            block = blocks.pop()
            rest = [premises[i] for i in kept if i not in set(block)]
            if self._follows(fact, rest):
                for i in block:
                    del kept[i]
            elif len(block) > 1:
                blocks += [block[len(block) // 2 :], block[: len(block) // 2]]
        return list(kept)

    def _follows(self, fact: Statement, premises: Sequence[Statement]) -> bool:
        """Returns whether a fact follows from the premises, by a known world or by a proof."""
        if self._known.refute(fact, premises):
            return False
        if self._proofs_left is not None:
            if self._proofs_left == 0:
                raise _TooLongError
            self._proofs_left -= 1
        return not self._refuted([fact], premises)


def _difficulty(clue: Statement) -> int:
    """Returns the rank by which clues are added: 0 simple statements, 1 moves, 3 compound clues, 2 all others."""
    if isinstance(clue, _SIMPLE):
        return 0
    if isinstance(clue, Moved | Carried):
        return 1
    return 3 if isinstance(clue, _COMPOUND) else 2
