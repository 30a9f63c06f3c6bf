"""Finds the statements about a puzzle in a completion, and proves whether the clues entail or contradict each."""

import re
from functools import cached_property, lru_cache
from random import Random

from stages.environments.logic_puzzles.minimal import drop_needless
from stages.environments.puzzle import Asserted, StatementVerdict
from stages.environments.temporal_clue.formal import FormalPuzzle, Shape, Statement
from stages.environments.temporal_clue.generation.scenario import draw_world
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.text import canonical
from stages.environments.temporal_clue.proofs.encoding import Encoding
from stages.environments.temporal_clue.proofs.solver import encode, rules
from stages.environments.temporal_clue.worlds import Worlds

_BOUNDARY = re.compile(r"\n|[!?;:]|(?<!\bMr)(?<!\bMrs)(?<!\bSgt)\.(?=\s|$)")
_HYPOTHESIS = re.compile(
    r"\b(?:if|suppose|supposing|assume|assuming|whether|maybe|perhaps|possibly|could|might|may|unless|either|or|"
    r"not true|false that|cannot be|impossible)\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"[*_`\"']{0,3},? (?:if|unless|or|or not|would|could|might)\b|[*_`\"']{0,3} ?\?")
_WORLDS = 32
_SENTENCE_CHARACTERS = 300
"""Number of characters before a statement in which the beginning of its sentence is searched."""


class Judge:
    """Verdicts on statements about one puzzle, whose model is built once.

    The constructor finds a world that the clues allow. If CP-SAT proves that it is the only one, the truth of a
    statement in it is the verdict. Otherwise each statement takes one solve, for a world with the opposite truth.

    Attributes:
        decided: Whether the clues allow one world only.
    """

    def __init__(self, puzzle: FormalPuzzle) -> None:
        """Builds the model of a puzzle.

        Raises:
            ValueError: The clues contradict one another, so that they entail every statement.
        """
        self._scenario, self._puzzle = puzzle.scenario, puzzle
        self._clues = {canonical(puzzle.scenario, clue): i for i, clue in enumerate(puzzle.clues)}
        self._encoding = encode(puzzle)
        values = self._encoding.solve()
        if values is None:
            raise ValueError("the clues contradict one another")
        world = self._encoding.world(values)
        self._world = Worlds.of(puzzle.scenario.shape, [world])
        self.decided = not self._encoding.allows_other(world)

    def verdict(self, statement: Statement) -> StatementVerdict:
        """Returns the proved verdict on a statement."""
        if canonical(self._scenario, statement) in self._clues:
            return "restated"
        truth = bool(self._world.holds(statement)[0])
        if not self.decided and not self.proves(statement, truth):
            return "open"
        if not truth:
            return "contradicted"
        return "restated" if self._says_nothing(statement) else "proved"

    def _says_nothing(self, statement: Statement) -> bool:
        """Returns whether the rules alone entail a statement, as that somebody was where he was."""
        if not _worlds_of_rules(self._scenario.shape).holds(statement).all():
            return False
        return self._optional.solve([~self._optional.literal(statement)]) is None

    def proves(self, statement: Statement, truth: bool = True) -> bool:
        """Returns whether a statement has a given truth value in every world that the clues allow (one solve).

        Args:
            statement: The statement.
            truth: The truth value to prove.
        """
        literal = self._encoding.literal(statement)
        return self._encoding.solve([~literal if truth else literal]) is None

    def premises(self, statement: Statement) -> tuple[int, ...] | None:
        """Returns numbers (from 1) of clues that decide a statement; see `capabilities.Proves.premises`."""
        verdict = self.verdict(statement)
        if verdict == "open":
            return None
        literal = self._optional.literal(statement)
        opposite = literal if verdict == "contradicted" else ~literal
        clues = [self._optional.literal(clue) for clue in self._puzzle.clues]
        start = list(range(len(clues)))
        if verdict == "restated":
            stated = self._clues.get(canonical(self._scenario, statement))
            start = [] if stated is None else [stated]
        kept = drop_needless(start, lambda some: self._optional.solve([*(clues[i] for i in some), opposite]) is None)
        return tuple(i + 1 for i in kept)

    @cached_property
    def _optional(self) -> Encoding:
        """The rules without the clues; each proof adds the clues that it uses."""
        return rules(self._scenario.shape).copy()

    def read(self, text: str) -> list[Asserted]:
        """Returns the statements that a text asserts, in order; hypotheses, questions and alternatives do not count."""
        statements: list[Asserted] = []
        verdicts: dict[Statement, StatementVerdict] = {}
        for item in grammar_of(self._scenario).find(text):
            if not _asserted(text, item.start, item.end):
                continue
            statement = canonical(self._scenario, item.statement)
            repeated = statement in verdicts
            if not repeated:
                verdicts[statement] = self.verdict(item.statement)
            statements.append(Asserted(text[item.start : item.end], verdicts[statement], item.start, repeated))
        return statements


@lru_cache(maxsize=32)
def _worlds_of_rules(shape: Shape) -> Worlds:
    """Returns some worlds; most statements that the rules do not entail are false in one of them."""
    return Worlds.of(shape, [draw_world(shape, Random(seed)) for seed in range(_WORLDS)])


def _asserted(text: str, start: int, end: int) -> bool:
    """Returns whether the sentence around a statement asserts it, not as a hypothesis, alternative or question."""
    before = text[max(0, start - _SENTENCE_CHARACTERS) : start]
    boundaries = [match.end() for match in _BOUNDARY.finditer(before)]
    opening = before[boundaries[-1] :] if boundaries else before
    return not _HYPOTHESIS.search(opening) and not _CONDITION.match(text, end)


@lru_cache(maxsize=256)
def judge_of(puzzle: FormalPuzzle) -> Judge | None:
    """Returns the judge of a puzzle, which is built once; None if the clues contradict one another."""
    try:
        return Judge(puzzle)
    except ValueError:
        return None
