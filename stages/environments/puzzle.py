"""Data classes of puzzles and of their grades, for all stages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stages.environments.thoughts import DEFAULT_THINKING, ThinkingConfig

Grader = Literal["strict", "published"]
FileGrader = Literal["exact", "choice", "number", "boxed", "regex"]
FILE_GRADERS: tuple[FileGrader, ...] = get_args(FileGrader)
"""Rules by which the answers to questions from a file are read; see `QuestionFileConfig.grader`."""
StatementVerdict = Literal["restated", "proved", "open", "contradicted"]
Style = Literal["plain", "terse", "cited", "bare"]
"""The format of a derivation.

`plain`: numbered lines; each has a statement and then the numbers of its premises. `terse`: the premises come first,
and every line has a name that later lines use. `cited`: the premises come first, in the words of clues and earlier
lines. `bare`: the statements alone.
"""
Taught = Style | Literal["transcripts"]
"""Texts, other than answers, on which a warm start trains: derivations of a style, or transcripts with the solver."""


@dataclass(frozen=True)
class Puzzle:
    """One puzzle of any environment.

    Attributes:
        prompt_id: Unique within a set.
        environment: Name of its environment (see `stages.environments.environment`).
        prompt: The whole text that the model receives, or a conversation as JSON (see
            `artifacts.documents.conversation`).
        solution: Answer to each question, by letter; a single answer without a letter is named `answer`, and data that
            only its grader reads `item`.
        num_clues: Number of clues in the prompt.
        seed: Seed that the puzzle was generated from; None for a puzzle from a file.
        digest: SHA-256 (hex) of the formal puzzle, not of its text; it ignores the order of the clues. For an item
            without clues it is the SHA-256 of the prompt, for an episode that of its item as JSON.
        difficulty: Sizes of the puzzle by name (`suspects`, `weapons`, `rooms`, `times`, `motives`, ...).
        thinking: What counts as a thought, which graders skip.
    """

    prompt_id: str
    environment: str
    prompt: str
    solution: dict[str, str]
    num_clues: int
    seed: int | None
    digest: str
    difficulty: dict[str, int]
    thinking: ThinkingConfig = DEFAULT_THINKING


@dataclass(frozen=True)
class Parsed:
    """The answer to one letter that was read from a completion.

    Attributes:
        text: The words after the letter; None if the completion does not have the letter.
        value: The value of the puzzle that the words name; None if they name none.
        correct: Whether this value is the right answer.
        note: `missing` (no such letter), `outside` (no value of the puzzle), `ambiguous` (several values), why grading
            failed, or empty.
    """

    text: str | None
    value: str | None
    correct: bool
    note: str = ""


@dataclass(frozen=True)
class Graded:
    """A graded completion.

    Attributes:
        accuracy: Fraction of the lettered questions answered right, 0 to 1.
        exact: Whether all questions are answered right.
        answers: The answers that were read, by letter.
    """

    accuracy: float
    exact: bool
    answers: dict[str, Parsed]


@dataclass(frozen=True)
class Asserted:
    """A statement that a completion asserts.

    Attributes:
        text: The words.
        verdict: `restated` (it is one of the clues, or the rules alone entail it), `proved` (the clues entail it),
            `contradicted` (the clues entail the opposite), or `open` (none of these).
        start: Offset of the words in the completion, in characters.
        repeated: Whether the completion has asserted the same before, in these or other words.
    """

    text: str
    verdict: StatementVerdict
    start: int
    repeated: bool = False

    @property
    def end(self) -> int:
        """The offset after the words, in characters."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class DeductionCounts:
    """Numbers of different statements about a puzzle that a text asserts; a repeated statement counts once.

    Attributes:
        statements: Number of all statements.
        proved: Number of statements that the clues entail, but neither a clue states nor the rules alone entail.
        restated: Number of statements that a clue states, or that say nothing, because the rules alone entail them.
        open: Number of statements that the clues neither entail nor contradict.
        contradicted: Number of statements whose opposite the clues entail.
    """

    statements: int
    proved: int
    restated: int
    open: int
    contradicted: int

    @classmethod
    def of(cls, asserted: Sequence[Asserted]) -> "DeductionCounts":
        """Returns the counts of different statements by verdict."""
        counts = Counter(item.verdict for item in asserted if not item.repeated)
        return cls(counts.total(), counts["proved"], counts["restated"], counts["open"], counts["contradicted"])

    @property
    def sound(self) -> float:
        """Fraction of proved statements among those that do not restate a clue; 0 if there are none."""
        return self.proved / max(1, self.statements - self.restated)


@dataclass(frozen=True)
class Kinds:
    """Counts of a puzzle's clues and questions by kind."""

    clues: dict[str, int]
    questions: dict[str, int]


@dataclass(frozen=True)
class Checked:
    """The result of solving a puzzle from its text alone, compared with its given solution.

    Attributes:
        prompt_id: Id of the puzzle.
        unread: Sentences that the reader could not read, each with its place; such a puzzle is not solved.
        answers: The solver's answers by letter; empty if there is no solution.
        unique: Whether the clues allow no other answer (proved), by letter.
        different: Letters whose answer differs from that of the given solution.
        same_text: Whether writing the formal puzzle as text gives the prompt.
        needless: Numbers (from 1) of clues that can be dropped without a second solution; None if not checked.
        seconds: Wall time of reading and solving.
    """

    prompt_id: str
    unread: tuple[str, ...]
    answers: dict[str, str]
    unique: dict[str, bool]
    different: tuple[str, ...]
    same_text: bool
    needless: tuple[int, ...] | None
    seconds: float

    @property
    def all_unique(self) -> bool:
        """Whether there is a solution in which every answer is the only possible one."""
        return bool(self.unique) and all(self.unique.values())

    @property
    def equal(self) -> bool:
        """Whether there is a solution that equals the given one."""
        return bool(self.answers) and not self.different
