"""The puzzle as every stage sees it: a prompt and lettered answers; and the grade of an attempt at it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Grader = Literal["strict", "published"]
Verdict = Literal["restated", "proved", "open", "contradicted"]
Note = Literal["", "missing", "outside", "ambiguous"]


@dataclass(frozen=True)
class Puzzle:
    """One puzzle of any environment.

    Attributes:
        puzzle_id: Unique within a set.
        environment: Name of the environment that made it (see `stages.puzzles.environment`).
        prompt: The whole text shown to the model.
        solution: Letter of each question to its answer.
        num_clues: Number of clues in the prompt.
        seed: Seed it was generated from; None for a puzzle read from a file.
        digest: SHA-256 (hex) of the formal puzzle: cast, layout and clues in any order, not of the text.
        difficulty: Sizes of the puzzle, by name (`suspects`, `weapons`, `rooms`, `times`, `motives`, ...).
    """

    puzzle_id: str
    environment: str
    prompt: str
    solution: dict[str, str]
    num_clues: int
    seed: int | None
    digest: str
    difficulty: dict[str, int]


@dataclass(frozen=True)
class Parsed:
    """What was read for one letter.

    Attributes:
        text: The words after the letter, or None where the letter was not found.
        value: The puzzle's own value that they name, or None.
        correct: Whether it is the answer.
        note: `missing` (no such letter), `outside` (not one of the puzzle's values), `ambiguous` (several), or empty.
    """

    text: str | None
    value: str | None
    correct: bool
    note: Note = ""


@dataclass(frozen=True)
class Graded:
    """A graded completion.

    Attributes:
        accuracy: Fraction of the lettered questions answered right, 0 to 1.
        exact: Whether all of them are.
        answers: What was read, by letter.
    """

    accuracy: float
    exact: bool
    answers: dict[str, Parsed]


@dataclass(frozen=True)
class Asserted:
    """A statement that a completion asserts.

    Attributes:
        text: The words.
        verdict: `restated` (a clue says just this), `proved` (the clues entail it), `contradicted` (they entail the
            opposite), or `open` (neither).
    """

    text: str
    verdict: Verdict


@dataclass(frozen=True)
class DeductionCounts:
    """How many different statements about a puzzle a text asserts; a repeated statement counts once.

    Attributes:
        statements: All of them.
        proved: Those that the clues entail and no clue states.
        restated: Those that a clue states.
        open: Those that the clues neither entail nor contradict.
        contradicted: Those whose opposite the clues entail.
    """

    statements: int
    proved: int
    restated: int
    open: int
    contradicted: int

    @classmethod
    def of(cls, asserted: Sequence[Asserted]) -> "DeductionCounts":
        """Counts statements by verdict."""
        counts = Counter(item.verdict for item in asserted)
        return cls(len(asserted), counts["proved"], counts["restated"], counts["open"], counts["contradicted"])

    @property
    def sound(self) -> float:
        """Fraction proved of all statements but the restated ones, 0 where there are none."""
        return self.proved / max(1, self.statements - self.restated)


@dataclass(frozen=True)
class Kinds:
    """How many clues and questions of each kind a puzzle has, by the kind's name."""

    clues: dict[str, int]
    questions: dict[str, int]


@dataclass(frozen=True)
class Checked:
    """A puzzle solved from its text alone, beside the solution that came with it.

    Attributes:
        puzzle_id: Which puzzle.
        unread: What the reader could not read, each with its place; such a puzzle is not solved.
        answers: Letter to the solver's answer; empty where there is no solution.
        unique: Letter to whether the clues allow no other answer (proved).
        different: Letters whose answer is not the given one.
        same_text: Whether the formal puzzle, written again, is the prompt itself.
        needless: Numbers (from 1) of clues that may be dropped without a second solution; None where not asked.
        seconds: Wall time of reading and solving.
    """

    puzzle_id: str
    unread: tuple[str, ...]
    answers: dict[str, str]
    unique: dict[str, bool]
    different: tuple[str, ...]
    same_text: bool
    needless: tuple[int, ...] | None
    seconds: float

    @property
    def all_unique(self) -> bool:
        """Whether there is a solution and every answer in it is the only possible one."""
        return bool(self.unique) and all(self.unique.values())

    @property
    def equal(self) -> bool:
        """Whether there is a solution and it is the given one."""
        return bool(self.answers) and not self.different
