"""Formal data classes of the game: scenario, statements about it, and questions.

They contain indices into the scenario's lists; the package `language` converts them to words and back.
"""

import math
from dataclasses import dataclass
from typing import Literal

RefKind = Literal["suspect", "weapon", "boddy", "murderer", "murder_weapon", "motive"]
Direction = Literal["north", "south", "east", "west"]
AnswerType = Literal["SUSPECT", "WEAPON", "ROOM", "TIME", "MOTIVE"]
DIRECTIONS: tuple[Direction, ...] = ("north", "south", "east", "west")
_STEPS: dict[Direction, tuple[int, int]] = {"north": (-1, 0), "south": (1, 0), "east": (0, 1), "west": (0, -1)}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a scenario, without any name.

    Attributes:
        suspects: Number of suspects.
        weapons: Number of weapons.
        rooms: Number of rooms, laid out row by row.
        columns: Rooms in a full row.
        times: Number of times; 1 means that the puzzle has no time dimension.
        motive_counts: Number of suspects with each motive; empty without motives, else with the sum `suspects`.
    """

    suspects: int
    weapons: int
    rooms: int
    columns: int
    times: int = 1
    motive_counts: tuple[int, ...] = ()

    @property
    def pieces(self) -> int:
        """Number of pieces on the board: suspects, then weapons, then Mr. Boddy."""
        return self.suspects + self.weapons + 1

    @property
    def boddy(self) -> int:
        """Piece index of Mr. Boddy."""
        return self.suspects + self.weapons

    @property
    def rows(self) -> int:
        """Number of rows of the board; the last row may be shorter."""
        return math.ceil(self.rooms / self.columns)

    def beside(self, room: int, direction: Direction) -> int | None:
        """Returns the room just `direction` of `room`, or None if there is none."""
        row, column = divmod(room, self.columns)
        row, column = row + _STEPS[direction][0], column + _STEPS[direction][1]
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            return None
        other = row * self.columns + column
        return other if other < self.rooms else None

    def neighbours(self, room: int) -> tuple[int, ...]:
        """Returns the rooms that are orthogonally adjacent to `room`."""
        others = (self.beside(room, direction) for direction in DIRECTIONS)
        return tuple(other for other in others if other is not None)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cast and the board, with names.

    Attributes:
        suspects: Names in the order of the prompt.
        weapons: Names in the order of the prompt.
        rooms: Names in the order of the board, row by row.
        columns: Rooms in a full row of the board.
        times: Labels in order; empty when the puzzle has no time dimension.
        motives: Names; empty when the puzzle has no motives.
        motive_counts: Number of suspects with each motive, in the order of `motives`.
    """

    suspects: tuple[str, ...]
    weapons: tuple[str, ...]
    rooms: tuple[str, ...]
    columns: int
    times: tuple[str, ...] = ()
    motives: tuple[str, ...] = ()
    motive_counts: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        """The scenario without its names."""
        return Shape(
            len(self.suspects),
            len(self.weapons),
            len(self.rooms),
            self.columns,
            max(1, len(self.times)),
            self.motive_counts,
        )

    def values(self) -> dict[AnswerType, tuple[str, ...]]:
        """Returns the possible answers of each type, by name."""
        return {
            "SUSPECT": self.suspects,
            "WEAPON": self.weapons,
            "ROOM": self.rooms,
            "TIME": self.times,
            "MOTIVE": self.motives,
        }


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a piece, by its name or by its role (murderer, murder weapon, suspect with a motive).

    If several suspects share the motive, it refers to one of them and does not say which.
    """

    kind: RefKind
    index: int = 0


@dataclass(frozen=True, slots=True)
class At:
    """`ref` was in `room` at `time`."""

    ref: Ref
    room: int
    time: int = 0


@dataclass(frozen=True, slots=True)
class SameRoom:
    """`first` and `second` were in one room at `time`."""

    first: Ref
    second: Ref
    time: int = 0


@dataclass(frozen=True, slots=True)
class Beside:
    """`first` was in the room just `direction` of the room of `second` at `time`."""

    first: Ref
    direction: Direction
    second: Ref
    time: int = 0


@dataclass(frozen=True, slots=True)
class Together:
    """`first` and `second` were both in `room` at some time."""

    first: Ref
    second: Ref
    room: int


@dataclass(frozen=True, slots=True)
class Moved:
    """`ref` was in `origin` at the time before `time` and in `target` at `time`, which is not the first time."""

    ref: Ref
    origin: int
    target: int
    time: int


@dataclass(frozen=True, slots=True)
class Carried:
    """`ref` and `weapon` both moved from `origin` to `target` at `time`, which is not the first time."""

    ref: Ref
    weapon: Ref
    origin: int
    target: int
    time: int


@dataclass(frozen=True, slots=True)
class HasMotive:
    """The suspect has the motive."""

    suspect: int
    motive: int


@dataclass(frozen=True, slots=True)
class MurderedBy:
    """The murderer is `ref`: a suspect by name, or a suspect with a motive."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class KilledWith:
    """The murder weapon is `weapon`."""

    weapon: int


@dataclass(frozen=True, slots=True)
class MurderedIn:
    """The murder happened in `room`."""

    room: int


@dataclass(frozen=True, slots=True)
class MurderedAt:
    """The murder happened at `time`."""

    time: int


@dataclass(frozen=True, slots=True)
class Not:
    """`inner` is false."""

    inner: "Statement"


@dataclass(frozen=True, slots=True)
class Either:
    """Exactly one of the two is true: the "or" of the puzzles is exclusive, as in their published generator."""

    first: "Statement"
    second: "Statement"


@dataclass(frozen=True, slots=True)
class Iff:
    """Both are true or both are false."""

    first: "Statement"
    second: "Statement"


Statement = (
    At
    | SameRoom
    | Beside
    | Together
    | Moved
    | Carried
    | HasMotive
    | MurderedBy
    | KilledWith
    | MurderedIn
    | MurderedAt
    | Not
    | Either
    | Iff
)

QuestionKind = Literal["murderer", "weapon", "room", "time", "motive", "where", "motive_of", "suspect_of"]
ANSWER_TYPES: dict[QuestionKind, AnswerType] = {
    "murderer": "SUSPECT",
    "weapon": "WEAPON",
    "room": "ROOM",
    "time": "TIME",
    "motive": "MOTIVE",
    "where": "ROOM",
    "motive_of": "MOTIVE",
    "suspect_of": "SUSPECT",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A lettered question.

    Attributes:
        kind: Kind of question; `where` uses `ref` and `time`, `motive_of` a suspect, `suspect_of` a motive.
        ref: The piece or motive that the question is about, for the last three kinds.
        time: Time index, for `where`.
    """

    kind: QuestionKind
    ref: Ref | None = None
    time: int = 0

    @property
    def answer_type(self) -> AnswerType:
        """The type of its answer."""
        return ANSWER_TYPES[self.kind]


@dataclass(frozen=True, slots=True)
class FormalPuzzle:
    """A whole puzzle without its text.

    Attributes:
        scenario: Cast and board.
        clues: Statements in the order of the prompt.
        questions: The main questions, from letter A.
        bonus: The bonus questions, which continue the letters.
    """

    scenario: Scenario
    clues: tuple[Statement, ...]
    questions: tuple[Question, ...]
    bonus: tuple[Question, ...] = ()
