"""Proofs from the clues of a zebra grid: verdicts on the statements of a completion, and derivations."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from stages.environments.logic_puzzles.lines import cited_line, terse_line
from stages.environments.logic_puzzles.minimal import drop_needless
from stages.environments.puzzle import Asserted, StatementVerdict, Style
from stages.environments.solver_tool import LIMIT, NO_RESULT
from stages.environments.zebra.formal import (
    Clue,
    Grid,
    Houses,
    InHouse,
    Related,
    Thing,
    ZebraPuzzle,
    ZebraQuestion,
    holds,
)
from stages.environments.zebra.solver import GridModel
from stages.environments.zebra.text import people_of, read_clue, write_clue

_SENTENCE = re.compile(r"[^\n.;!?()]+")
_OPENING = re.compile(
    r"(?:[-*>#:\s\d]|s(?=\d)|rules(?=:)|so,? |thus,? |hence,? |then,? |and |therefore,? )*", re.IGNORECASE
)
_WORLDS = 32
_SENTENCE_CHARACTERS = 300


class Reasoner:
    """Proofs about one puzzle. The model is built once, and every proof takes one solve.

    Attributes:
        world: A world that the clues allow, int8 [1, attributes, values].
    """

    def __init__(self, puzzle: ZebraPuzzle, limit: float | None = None) -> None:
        """Builds the model of a puzzle.

        Args:
            puzzle: The puzzle.
            limit: Limit of all proofs together in CP-SAT's deterministic time, after which they raise TimeoutError.

        Raises:
            ValueError: The clues contradict one another, so that they entail every statement.
        """
        self._puzzle, self._model = puzzle, GridModel(puzzle.grid, puzzle.clues)
        self._model.limit = limit
        self._every = list(range(len(puzzle.clues)))
        self._stated = {_canonical(clue): i for i, clue in enumerate(puzzle.clues)}
        world = self._model.solve(self._every)
        if world is None:
            raise ValueError("the clues contradict one another")
        self.world: Houses = world

    def entails(self, statement: Clue, clues: int | None = None) -> bool:
        """Returns whether the clues entail a statement.

        Args:
            statement: The statement.
            clues: Number of clues that are used, counted from the first; None for all clues.
        """
        opposite = self._model.add(replace(statement, no=not statement.no))
        return self._model.solve([*self._every[:clues], opposite]) is None

    def needed(self, statement: Clue, clues: int, earlier: Sequence[Clue]) -> tuple[list[int], list[int]]:
        """Returns positions (from 0) of clues and of earlier statements from which a statement follows.

        None of them can be left out. Clues are dropped before earlier statements.

        Args:
            statement: A statement that the first clues entail.
            clues: Number of first clues.
            earlier: Statements that these clues entail.
        """
        opposite = self._model.add(replace(statement, no=not statement.no))
        steps = [self._model.add(fact) for fact in earlier]
        steps_first = [*reversed(steps), *reversed(range(clues))]
        kept = drop_needless(steps_first, lambda some: self._model.solve([*some, opposite]) is None)
        return [i for i in range(clues) if i in kept], [n for n, step in enumerate(steps) if step in kept]

    def verdict(self, statement: Clue) -> StatementVerdict:
        """Returns the proved verdict on a statement."""
        if _canonical(statement) in self._stated:
            return "restated"
        truth = bool(holds(statement, self.world)[0])
        if not self.entails(statement if truth else replace(statement, no=not statement.no)):
            return "open"
        if not truth:
            return "contradicted"
        return "restated" if self._says_nothing(statement) else "proved"

    def _says_nothing(self, statement: Clue) -> bool:
        """Returns whether the rules alone entail a statement, as that somebody lives where he lives."""
        return bool(holds(statement, _worlds_of_rules(self._puzzle.grid)).all()) and self.entails(statement, 0)

    def read(self, text: str) -> list[Asserted]:
        """Returns the statements of a text, in order, with verdicts.

        A statement is a whole sentence, or the rest of a sentence after a word such as "so". Questions state nothing.
        """
        people = people_of(self._puzzle.grid)
        statements: list[Asserted] = []
        verdicts: dict[Clue, StatementVerdict] = {}
        for sentence in _SENTENCE.finditer(text):
            if len(sentence[0]) > _SENTENCE_CHARACTERS or text[sentence.end() : sentence.end() + 1] == "?":
                continue
            opening = _OPENING.match(sentence[0])
            start = opening.end() if opening else 0
            words = sentence[0][start:].rstrip()
            statement = self._statement(people, words)
            if statement is None:
                continue
            repeated = statement in verdicts
            if not repeated:
                verdicts[statement] = self.verdict(statement)
            statements.append(Asserted(words, verdicts[statement], sentence.start() + start, repeated))
        return statements

    def _statement(self, people: dict[str, Thing], words: str) -> Clue | None:
        return read_statement(self._puzzle.grid, people, words)

    def premises(self, words: str) -> tuple[int, ...] | None:
        """Returns numbers (from 1) of clues that decide a statement; see `capabilities.Proves.premises`."""
        statement = self._statement(people_of(self._puzzle.grid), words)
        if statement is None or (verdict := self.verdict(statement)) == "open":
            return None
        opposite = statement if verdict == "contradicted" else replace(statement, no=not statement.no)
        switch = self._model.add(opposite)
        start = self._every
        if verdict == "restated":
            start = [self._stated[statement]] if statement in self._stated else []
        return tuple(i + 1 for i in drop_needless(start, lambda some: self._model.solve([*some, switch]) is None))

    def needless(self) -> tuple[int, ...]:
        """Returns numbers (from 1) of the clues that can each be dropped while `world` stays the only world."""
        others = GridModel(self._puzzle.grid, self._puzzle.clues)
        others.exclude(self.world)
        return tuple(i + 1 for i in self._every if others.solve([j for j in self._every if j != i]) is None)


@lru_cache(maxsize=32)
def _worlds_of_rules(grid: Grid) -> Houses:
    """Returns some worlds; most statements that the rules do not entail are false in one of them."""
    return np.random.default_rng(0).random((_WORLDS, len(grid.values), grid.houses)).argsort(axis=2).astype(np.int8)


@lru_cache(maxsize=256)
def reasoner_of(puzzle: ZebraPuzzle) -> Reasoner | None:
    """Returns the reasoner of a puzzle, which is built once; None if the clues contradict one another."""
    try:
        return Reasoner(puzzle)
    except ValueError:
        return None


def statement_of(grid: Grid, world: Houses, question: ZebraQuestion) -> Clue:
    """Returns the answer to a question in a world, as a statement."""
    house = int(world[0, question.thing[0], question.thing[1]])
    if question.attribute is None:
        return InHouse(question.thing, house)
    value = int(np.flatnonzero(world[0, question.attribute] == house)[0])
    return Related((question.attribute, value), "same", question.thing)


def write_derivation(puzzle: ZebraPuzzle, style: Style = "plain") -> str:
    """Returns a derivation: the houses of the values that the answers need, one statement a line.

    In `plain` style a statement cites the shortest run of first clues from which it follows. In the other styles it
    cites a minimal set of these clues and of earlier statements.

    Args:
        puzzle: The puzzle.
        style: See `stages.environments.puzzle.Style`.

    Raises:
        ValueError: The clues contradict one another, or leave the house of a value open.
    """
    reasoner = Reasoner(puzzle)
    world = reasoner.world[0]
    needed = {question.thing for question in puzzle.questions}
    for question in puzzle.questions:
        if question.attribute is not None:
            house = world[question.thing[0], question.thing[1]]
            needed.add((question.attribute, int(np.flatnonzero(world[question.attribute] == house)[0])))
    pending = [InHouse(thing, int(world[thing[0], thing[1]])) for thing in sorted(needed)]
    steps: list[tuple[Clue, int]] = []
    for count in range(len(puzzle.clues) + 1):
        entailed = [fact for fact in pending if reasoner.entails(fact, count)]
        pending = [fact for fact in pending if fact not in entailed]
        steps += [(fact, count) for fact in entailed]
    if pending:
        raise ValueError(f"the clues leave open whether {write_clue(puzzle.grid, pending[0])}")
    return "\n".join(_line(puzzle, reasoner, style, steps[: number + 1]) for number in range(len(steps)))


def _line(puzzle: ZebraPuzzle, reasoner: Reasoner, style: Style, steps: Sequence[tuple[Clue, int]]) -> str:
    """Returns the line of the last step. A step is a statement and the number of first clues that entail it."""
    number, (fact, count), earlier = len(steps) - 1, steps[-1], [step for step, _ in steps[:-1]]
    statement = write_clue(puzzle.grid, fact)
    if style == "bare":
        return statement
    if style == "plain":
        sources = "rules" if not count else "clue 1" if count == 1 else f"clues 1 to {count}"
        return f"{number + 1}. {statement} ({sources})."
    clues, facts = reasoner.needed(fact, count, earlier)
    if style == "terse":
        return terse_line(number, [str(i + 1) for i in clues] + [f"s{i + 1}" for i in facts], statement)
    premises = [puzzle.clues[i] for i in clues] + [earlier[i] for i in facts]
    return cited_line([write_clue(puzzle.grid, premise) for premise in premises], statement)


@lru_cache(maxsize=4096)
def shared_answers(puzzle: ZebraPuzzle) -> list[str] | None:
    """Returns the answers that all worlds of a puzzle's clues share, as sentences.

    Args:
        puzzle: The puzzle; its clues may leave answers open or contradict one another.

    Returns:
        The sentences in the order of the questions, or `NO_RESULT` if the proofs would take more than
        `stages.environments.solver_tool.LIMIT`; None if there is no world.
    """
    try:
        reasoner = Reasoner(puzzle, LIMIT)
        statements = [statement_of(puzzle.grid, reasoner.world, question) for question in puzzle.questions]
        return [write_clue(puzzle.grid, statement) for statement in statements if reasoner.entails(statement)]
    except TimeoutError:
        return [NO_RESULT]
    except ValueError:  # the clues contradict one another
        return None


def read_statement(grid: Grid, people: dict[str, Thing], words: str) -> Clue | None:
    """Returns the statement of a sentence, in a form that equal statements share; None if it does not fit the grid.

    Args:
        grid: The words of the puzzle.
        people: Those of `text.people_of`.
        words: The sentence, without a full stop.
    """
    statement = read_clue(people, words)
    return None if statement is None or not _within(statement, grid) else _canonical(statement)


def _within(statement: Clue, grid: Grid) -> bool:
    return not isinstance(statement, InHouse) or statement.house < grid.houses


def _canonical(statement: Clue) -> Clue:
    if isinstance(statement, Related) and statement.relation in ("same", "next") and statement.first > statement.second:
        return replace(statement, first=statement.second, second=statement.first)
    return statement
