"""Derives the answers where worlds are too many to list: CP-SAT proves, and worlds that it met refute.

Clues are taken in one by one, the plainest first, and after each the simple facts are found that follow by now: what is
true in every known world that the clues allow may follow, and one solve proves all of it or finds a world more. Then,
from the answers back, each fact is explained by clues and facts that were there before it, none of which can be spared.
Facts that follow from the same clues come in the order of how many clues the known worlds show each to need.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from stages.puzzles.temporal_clue.formal import (
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
from stages.puzzles.temporal_clue.nearby import nearby
from stages.puzzles.temporal_clue.solver import encode, rules
from stages.puzzles.temporal_clue.steps import Step, answer_statements, facts_of
from stages.puzzles.temporal_clue.text import canonical, write_statement
from stages.puzzles.temporal_clue.worlds import Worlds

_PLAIN = (At, HasMotive, MurderedBy, KilledWith, MurderedIn, MurderedAt)
_KNOTTY = (Together, Either, Iff)
_MOST_WORLDS = 40_000
"""With so many worlds known, those near a new one are no longer added."""
_MOST_CLUES = 30
"""Of puzzles with more clues the answers are the only steps: other facts are many there, from many premises each."""
_MOST_PROOFS = 600
"""The same of puzzles that would take more proofs to do without premises."""


def chained_steps(puzzle: FormalPuzzle) -> list[Step]:
    """The steps to all answers of `puzzle`; the same on every machine.

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
    """All proofs that were granted are spent."""


class _Known:
    """Worlds that were met, and in which of them a statement is false: bit i for world i."""

    def __init__(self) -> None:
        self._parts: list[Worlds] = []
        self._false: dict[Statement, tuple[int, int, int]] = {}
        self.count = 0

    def add(self, worlds: Worlds) -> None:
        """Takes in N worlds."""
        self._parts.append(worlds)
        self.count += len(worlds)

    def false(self, statement: Statement) -> int:
        """Where `statement` is false."""
        mask, size, done = self._false.get(statement, (0, 0, 0))
        for worlds in self._parts[done:]:
            bits = np.packbits(~worlds.holds(statement), bitorder="little").tobytes()
            mask |= int.from_bytes(bits, "little") << size
            size += len(worlds)
        self._false[statement] = mask, size, len(self._parts)
        return mask

    def refute(self, fact: Statement, premises: Iterable[Statement]) -> bool:
        """Whether `fact` is false in a known world in which all of `premises` are true."""
        wrong = self.false(fact)
        for premise in premises:
            wrong &= ~self.false(premise)
        return wrong != 0

    def needed(self, fact: Statement, premises: Sequence[Statement]) -> int:
        """How many of `premises` a known world shows to be needed, one at a time, by the others."""
        once = twice = 0  # worlds that one premise, that several premises rule out
        masks = [self.false(premise) for premise in premises]
        for mask in masks:
            twice |= once & mask
            once |= mask
        alone = self.false(fact) & once & ~twice
        return sum(mask & alone != 0 for mask in masks)


class _Chain:
    """One derivation in the making.

    Args:
        puzzle: What is derived.
        values: Of all variables, in a world that the clues allow.
        proofs: How many may be spent on doing without premises; None is any number, with the answers as the only facts.
    """

    def __init__(self, puzzle: FormalPuzzle, values: Sequence[int], proofs: int | None) -> None:
        self._puzzle, self._plain, self._proofs_left = puzzle, proofs is None, proofs
        self._encoding = encoding = rules(puzzle.scenario.shape).copy()
        self._world = encoding.world(values)
        self._order = sorted(range(len(puzzle.clues)), key=lambda i: _difficulty(puzzle.clues[i]))
        self._clues = [puzzle.clues[i] for i in self._order]
        self._targets = answer_statements(encoding.shape, self._world, puzzle.questions + puzzle.bonus)
        self._known = _Known()
        self._known.add(nearby(encoding.shape, self._world))

    def _refuted(self, facts: Sequence[Statement], premises: Sequence[Statement]) -> bool:
        """Whether one of `facts` is false in some world in which `premises` hold; what the one solve finds is known."""
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
        """The facts that follow, each with how many of the clues, in their order, it follows from."""
        scenario = self._puzzle.scenario
        stated = {canonical(scenario, clue) for clue in self._clues}
        stones = [fact for fact in facts_of(scenario.shape, self._world) if canonical(scenario, fact) not in stated]
        wanted = self._targets if self._plain else [*self._targets, *stones]
        pending = list(dict.fromkeys(wanted))
        found: list[tuple[Statement, int]] = []
        for count in range(len(self._clues) if self._plain else 0, len(self._clues) + 1):
            clues = self._clues[:count]
            entailed = [fact for fact in pending if not self._known.refute(fact, clues)]
            while entailed and self._refuted(entailed, clues):
                entailed = [fact for fact in entailed if not self._known.refute(fact, clues)]
            needed = {fact: self._known.needed(fact, clues) for fact in entailed}
            entailed.sort(key=needed.__getitem__)
            found += [(fact, count) for fact in entailed]
            settled = set(entailed)
            pending = [fact for fact in pending if fact not in settled]
            if not any(target in pending for target in self._targets):
                return found
        missing = next(target for target in self._targets if target in pending)
        raise ValueError(f"the clues leave open whether {write_statement(scenario, missing)}")

    def steps(self) -> list[Step]:
        """The steps that the answers need.

        Raises:
            ValueError: The clues leave an answer open.
            _TooLongError: The proofs did not suffice.
        """
        facts = self._facts_in_order()
        position = {fact: i for i, (fact, _) in enumerate(facts)}
        premises: dict[int, tuple[list[int], list[int]]] = {}
        wanted = [position[target] for target in self._targets]
        while wanted:
            i = wanted.pop()
            if i not in premises:
                premises[i] = self._explained(facts[i][0], facts[i][1], [fact for fact, _ in facts[:i]])
                wanted += premises[i][1]
        number = {i: n for n, i in enumerate(sorted(premises))}
        return [
            Step(facts[i][0], tuple(sorted(self._order[c] for c in clues)), tuple(sorted(number[j] for j in earlier)))
            for i, (clues, earlier) in sorted(premises.items())
        ]

    def _explained(self, fact: Statement, count: int, earlier: list[Statement]) -> tuple[list[int], list[int]]:
        """Positions of few clues, of the first `count`, and few earlier facts from which `fact` follows.

        Two ways are tried: to do without facts first, and to do without clues first. The fewer premises win.
        """
        clues, facts = list(range(count)), list(range(count, count + len(earlier)))
        premises = [*self._clues[:count], *earlier]
        ways = [facts + clues, clues[:-1] + facts + clues[-1:]] if facts and not self._plain else [clues + facts]
        kept = min((self._kept(fact, premises, way) for way in ways), key=len)
        return [i for i in kept if i < count], [i - count for i in kept if i >= count]

    def _kept(self, fact: Statement, premises: list[Statement], order: list[int]) -> list[int]:
        """Positions of the premises that are left when what can be spared goes, in `order`.

        It goes by halves, which is quick where most of it goes; of many clues more than half stay.
        """
        kept = dict.fromkeys(order)
        blocks = [[i] for i in reversed(order)] if self._plain else [order]
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
        """Whether `fact` follows from `premises`, proved."""
        if self._known.refute(fact, premises):
            return False
        if self._proofs_left is not None:
            if self._proofs_left == 0:
                raise _TooLongError
            self._proofs_left -= 1
        return not self._refuted([fact], premises)


def _difficulty(clue: Statement) -> int:
    """How late a clue is taken in: placements first, then moves, then what joins or spreads over times."""
    if isinstance(clue, _PLAIN):
        return 0
    if isinstance(clue, Moved | Carried):
        return 1
    return 3 if isinstance(clue, _KNOTTY) else 2
