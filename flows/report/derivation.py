"""A completion as a derivation: its text, its statements with verdicts and premises, and its first false step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from stages.environments import environment
from stages.environments.capabilities import Proves
from stages.environments.puzzle import Asserted, DeductionCounts, Puzzle, StatementVerdict
from stages.environments.tables import assertions

_VERDICT_ORDER: tuple[StatementVerdict, ...] = ("proved", "contradicted", "restated", "open")
SYMBOLS: dict[StatementVerdict, str] = {
    "proved": "\N{CHECK MARK}",
    "restated": "=",
    "open": "?",
    "contradicted": "\N{BALLOT X}",
}
"""A character for each verdict, for pages without colours."""


@dataclass(frozen=True)
class StatementLine:
    """A statement of a completion.

    Attributes:
        number: Its number among all statements of the completion, from 1; repeated ones count.
        statement: The statement with its verdict.
        premises: Numbers (from 1) of the clues that decide it (see `Proves.premises`); None if the statement is
            open, or if the premises were not searched.
    """

    number: int
    statement: Asserted
    premises: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Piece:
    """A part of a completion's text.

    Attributes:
        text: The characters.
        verdict: The verdict on the statement that they belong to; None outside statements.
    """

    text: str
    verdict: StatementVerdict | None = None


@dataclass(frozen=True)
class DerivationLine:
    """A line of a completion.

    Attributes:
        pieces: Its text.
        steps: The statements that begin in it.
    """

    pieces: list[Piece]
    steps: list[StatementLine]


@dataclass(frozen=True)
class Derivation:
    """A completion with its statements.

    Attributes:
        text: The whole completion.
        finish_reason: Why it ended, as the engine reports it: `stop`, `length`, ...
        steps: Its statements, in order.
    """

    text: str
    finish_reason: str
    steps: tuple[StatementLine, ...]

    @property
    def statements(self) -> list[Asserted]:
        """The statements with their verdicts, in order."""
        return [step.statement for step in self.steps]

    @property
    def counts(self) -> DeductionCounts:
        """Numbers of different statements by verdict."""
        return DeductionCounts.of(self.statements)

    @property
    def first_false(self) -> StatementLine | None:
        """The first statement that the clues contradict; None if there is none."""
        return next((step for step in self.steps if step.statement.verdict == "contradicted"), None)

    @property
    def is_unfinished(self) -> bool:
        """Whether the completion was cut before its end."""
        return self.finish_reason != "stop"

    @property
    def lines(self) -> list[DerivationLine]:
        """The lines of the text."""
        lines: list[DerivationLine] = []
        start = 0
        statements = self.statements
        for text in self.text.split("\n"):
            end = start + len(text)
            steps = [step for step in self.steps if start <= step.statement.start < max(end, start + 1)]
            lines.append(DerivationLine(_pieces(self.text, statements, start, end - text.endswith("\r")), steps))
            start = end + 1
        return lines

    @property
    def conclusions(self) -> list[str]:
        """Sentences about the whole completion: its first false step, if any, and whether it is unfinished."""
        first, open_steps = self.first_false, [step for step in self.steps if step.statement.verdict == "open"]
        if first is not None:
            sentences = [f"First false step: step {first.number} is {step_words(first)}."]
        elif not self.steps:
            sentences = ["There is no statement about the puzzle."]
        elif open_steps:
            sentences = [f"No step is false, but the clues leave step {open_steps[0].number} open."]
        else:
            sentences = ["No step is false."]
        if self.is_unfinished:
            sentences.append(f"The completion is unfinished (finish reason {self.finish_reason}).")
        return sentences


def read_derivation(text: str, finish_reason: str, puzzle: Puzzle, *, every_premise: bool) -> Derivation | None:
    """Returns a completion with its statements; None if nothing can be proved about the puzzle.

    Args:
        text: The completion, any text.
        finish_reason: Why it ended.
        puzzle: Its puzzle.
        every_premise: Whether to search the premises of each statement, which takes several proofs for each; otherwise
            only those of the first false one are searched.
    """
    solver = environment.get(puzzle.environment)
    if not isinstance(solver, Proves) or (statements := assertions(text, puzzle)) is None:
        return None
    false = next((number for number, item in enumerate(statements, 1) if item.verdict == "contradicted"), None)

    @cache
    def premises(statement: str) -> tuple[int, ...] | None:
        return solver.premises(statement, puzzle)

    steps = (
        StatementLine(number, item, premises(item.text) if every_premise or number == false else None)
        for number, item in enumerate(statements, 1)
    )
    return Derivation(text, finish_reason, tuple(steps))


def step_words(step: StatementLine) -> str:
    """Returns the verdict on a step with its premises, such as `proved by clues 1 and 3`."""
    verdict = step.statement.verdict
    if verdict == "open":
        words = "open: the clues neither entail nor contradict it"
    elif step.premises is None:
        words = verdict
    elif verdict == "restated":
        words = f"restated from {_clues(step.premises)}"
    else:
        words = f"{verdict} by {_clues(step.premises)}"
    return f"{words} (repeated)" if step.statement.repeated else words


def step_line(step: StatementLine, line_steps: Sequence[StatementLine]) -> str:
    """Returns a step in words, such as `step 2: proved by clue 1`, with its text if its line has several steps.

    Args:
        step: The step.
        line_steps: All steps of its line of the completion.
    """
    words = f": {step.statement.text}" if len(line_steps) > 1 else ""
    return f"step {step.number}: {step_words(step)}{words}"


def _clues(numbers: Sequence[int]) -> str:
    if not numbers:
        return "the rules alone"
    *first, last = map(str, numbers)
    return f"clues {', '.join(first)} and {last}" if first else f"clue {last}"


def text_pieces(text: str, statements: Sequence[Asserted], limit: int) -> list[Piece]:
    """Returns a text in pieces, so that each statement is a piece of its own.

    In a text longer than `limit` characters a note replaces the middle, as in `flows.report.text.markdown.shortened`.
    """
    if len(text) <= limit:
        return _pieces(text, statements, 0, len(text))
    tail = limit // 3
    left_out = Piece(f"\n[... {len(text) - limit} characters left out ...]\n")
    head = _pieces(text, statements, 0, limit - tail)
    return [*head, left_out, *_pieces(text, statements, len(text) - tail, len(text))]


def _pieces(text: str, statements: Sequence[Asserted], start: int, end: int) -> list[Piece]:
    """Returns the characters from `start` to `end` in pieces; a statement that reaches beyond them is cut."""
    pieces: list[Piece] = []
    for statement in statements:
        first, last = max(start, statement.start), min(end, statement.end)
        if first < last:
            pieces += [Piece(text[start:first]), Piece(text[first:last], statement.verdict)]
            start = last
    return [piece for piece in [*pieces, Piece(text[start:end])] if piece.text]


def statement_counts(statements: Sequence[Asserted]) -> str:
    """Returns how many different statements the clues prove, contradict, restate and leave open, in words."""
    different = [item.verdict for item in statements if not item.repeated]
    counts = ", ".join(f"{different.count(verdict)} {verdict}" for verdict in _VERDICT_ORDER)
    return f"Statements about the puzzle: {counts}."


def statements_by_verdict(statements: Sequence[Asserted]) -> list[Asserted]:
    """Returns the different statements; proved and contradicted ones come first."""
    different = [item for item in statements if not item.repeated]
    return sorted(different, key=lambda item: _VERDICT_ORDER.index(item.verdict))
