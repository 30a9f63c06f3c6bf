"""Writes scenarios, statements, questions and whole prompts in the published text format."""

import hashlib
import json

from stages.environments.logic_puzzles.answers import letters
from stages.environments.temporal_clue.formal import (
    At,
    Beside,
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
    Not,
    Question,
    QuestionKind,
    Ref,
    SameRoom,
    Scenario,
    Statement,
    Together,
)

STORY = (
    "A dinner at the manor of Mr. Boddy ended badly: the host lies dead in one of his own rooms. "
    "These guests are suspects:"
)
WEAPONS_HEADING = "And the following weapons were found on the premises:"
ROOMS_HEADING = "The murder could only have occured in one of the following rooms:"
BOARD_HEADING = "The rooms are laid out as follows:"
TIMES_HEADING = (
    "The exact time of the murder is a bit uncertain, but it has been narrowed down to one of the following times:"
)
MOVES_RULE = (
    "At every time the suspects and Mr. Boddy either stayed in their current room or moved to an orthogonally adjacent "
    "room (north, south, east, or west). Weapons could be moved by suspects between rooms as well."
)
UNIQUE_MOTIVES_HEADING = "Each suspect uniquely had one of the following possible motives for killing Mr. Boddy:"
SHARED_MOTIVES_HEADING = "Each suspect had one of the following possible motives for killing Mr. Boddy:"
MURDER_RULE = (
    "For the murder to occur, the murderer and Mr. Boddy must have been alone in a room with at least one weapon"
)
TIMED_MURDER_RULE = (
    MURDER_RULE + " at some point in the night. Any clue about Mr. Boddy's whereabouts should be read as \"Mr. Boddy "
    '(dead or alive) ..."'
)
CLUES_HEADING = "The available clues are as follows:"
QUESTIONS_HEADING = "Please answer the following question(s):"
BONUS_HEADING = "And the following bonus question(s):"
FORMAT_HEADING = "Fill out your final answers in the following format:"
CLOSING = "Best of luck, detective."
FIXED_QUESTIONS: dict[QuestionKind, str] = {
    "murderer": "Who murdered Mr. Boddy?",
    "weapon": "What weapon did the murderer use?",
    "room": "Where was the murder committed?",
    "time": "When did the murder occur?",
    "motive": "Why did the murderer do it?",
}
"""The questions about the murder itself."""
AT_ROOMS = frozenset({"Fountain"})
"""Rooms that take the preposition "at" instead of "in"."""


def _place(scenario: Scenario, room: int) -> str:
    name = scenario.rooms[room]
    return f"{'at' if name in AT_ROOMS else 'in'} the {name}"


def _when(scenario: Scenario, time: int) -> str:
    return f" at {scenario.times[time]}" if scenario.times else ""


def write_ref(scenario: Scenario, ref: Ref) -> str:
    """Returns the words for a reference within a sentence."""
    if ref.kind == "suspect":
        return scenario.suspects[ref.index]
    if ref.kind == "weapon":
        return f"the {scenario.weapons[ref.index]}"
    if ref.kind == "boddy":
        return "Mr. Boddy"
    if ref.kind == "murderer":
        return "the murderer"
    if ref.kind == "murder_weapon":
        return "the murder weapon"
    article = "the" if scenario.motive_counts[ref.index] == 1 else "a"
    return f"{article} suspect motivated by {scenario.motives[ref.index]}"


def write_statement(scenario: Scenario, statement: Statement) -> str:
    """Returns a statement as a sentence without a full stop."""
    sentence = _sentence(scenario, statement)
    return sentence[0].upper() + sentence[1:]


def _sentence(scenario: Scenario, statement: Statement) -> str:
    rooms = scenario.rooms
    match statement:
        case At(ref, room, time):
            return f"{write_ref(scenario, ref)} was {_place(scenario, room)}{_when(scenario, time)}"
        case SameRoom(first, second, time):
            pair = f"{write_ref(scenario, first)} was in the same room as {write_ref(scenario, second)}"
            return pair + _when(scenario, time)
        case Beside(first, direction, second, time):
            return (
                f"{write_ref(scenario, first)} was in the room just {direction} of "
                f"{write_ref(scenario, second)}{_when(scenario, time)}"
            )
        case Together(first, second, room):
            pair = f"{write_ref(scenario, first)} and {write_ref(scenario, second)}"
            return f"{pair} were {_place(scenario, room)} together" + (" at least once" if scenario.times else "")
        case Moved(ref, origin, target, time):
            way = f"from the {rooms[origin]} to the {rooms[target]}"
            return f"{write_ref(scenario, ref)} moved {way}{_when(scenario, time)}"
        case Carried(ref, weapon, origin, target, time):
            moved = f"{write_ref(scenario, ref)} moved {write_ref(scenario, weapon)}"
            return f"{moved} from the {rooms[origin]} to the {rooms[target]}{_when(scenario, time)}"
        case HasMotive(suspect, motive):
            return f"{scenario.suspects[suspect]} is motivated by {scenario.motives[motive]}"
        case MurderedBy(ref):
            return f"Mr. Boddy was murdered by {write_ref(scenario, ref)}"
        case KilledWith(weapon):
            return f"Mr. Boddy was killed with the {scenario.weapons[weapon]}"
        case MurderedIn(room):
            return f"Mr. Boddy was murdered in the {rooms[room]}"
        case MurderedAt(time):
            return f"Mr. Boddy was murdered{_when(scenario, time)}"
        case Either(first, second):
            return f"{_sentence(scenario, first)} or {_sentence(scenario, second)}"
        case Iff(first, second):
            return f"{_sentence(scenario, first)} if and only if {_sentence(scenario, second)}"
        case Not(inner):
            return _negated(scenario, inner)


def _negated(scenario: Scenario, inner: Statement) -> str:
    if isinstance(inner, (Not, Either, Iff)):
        return f"it is not true that {_sentence(scenario, inner)}"
    if isinstance(inner, Together):
        pair = f"{write_ref(scenario, inner.first)} and {write_ref(scenario, inner.second)}"
        return f"{pair} were never {_place(scenario, inner.room)} together"
    if isinstance(inner, Moved | Carried):
        start = write_ref(scenario, inner.ref)
        return _sentence(scenario, inner).replace(f"{start} moved", f"{start} did not move", 1)
    if isinstance(inner, HasMotive):
        return f"{scenario.suspects[inner.suspect]} is not motivated by {scenario.motives[inner.motive]}"
    return _sentence(scenario, inner).replace(" was ", " was not ", 1)


def write_question(scenario: Scenario, question: Question) -> str:
    """Returns a question as a sentence."""
    ref = question.ref or Ref("boddy")
    match question.kind:
        case "where":
            return f"Where was {write_ref(scenario, ref)}{_when(scenario, question.time)}?"
        case "motive_of":
            return f"What motivates {scenario.suspects[ref.index]}?"
        case "suspect_of":
            return f"Who is motivated by {scenario.motives[ref.index]}?"
        case _:
            return FIXED_QUESTIONS[question.kind]


def write_board(rooms: int, columns: int) -> str:
    """Returns the map of the rooms, numbered from 1, with the compass points around it."""
    width = len(str(rooms))
    rows = -(-rooms // columns)
    lines = ["  " + " ".join(["N" * width] * columns) + "  "]
    for row in range(rows):
        numbers = range(row * columns + 1, (row + 1) * columns + 1)
        lines.append("W " + "|".join(f"{n:0{width}d}" if n <= rooms else "-" for n in numbers) + " E")
    lines.append("  " + " ".join(["S" * width] * columns) + "  ")
    return "\n".join(lines)


def _bullets(items: tuple[str, ...]) -> str:
    return "\n".join(f"• {item}" for item in items)


def write_prompt(puzzle: FormalPuzzle, story: str = STORY) -> str:
    """Returns the whole prompt; `story` is the paragraph before the list of suspects."""
    scenario = puzzle.scenario
    width = len(str(len(scenario.rooms)))
    parts = [story, _bullets(scenario.suspects), WEAPONS_HEADING, _bullets(scenario.weapons), ROOMS_HEADING]
    parts.append("\n".join(f"{i:0{width}d}. {room}" for i, room in enumerate(scenario.rooms, start=1)))
    parts += [BOARD_HEADING, write_board(len(scenario.rooms), scenario.columns)]
    if scenario.times:
        parts += [TIMES_HEADING, _bullets(scenario.times), MOVES_RULE]
    if scenario.motives and all(count == 1 for count in scenario.motive_counts):
        parts += [UNIQUE_MOTIVES_HEADING, _bullets(scenario.motives)]
    elif scenario.motives:
        counted = zip(scenario.motives, scenario.motive_counts, strict=True)
        shared = tuple(f"{name} ({count} suspect{'' if count == 1 else 's'})" for name, count in counted)
        parts += [SHARED_MOTIVES_HEADING, _bullets(shared)]
    parts.append(TIMED_MURDER_RULE if scenario.times else MURDER_RULE + ".")
    parts += [CLUES_HEADING, "\n".join(f"- {write_statement(scenario, clue)}" for clue in puzzle.clues)]
    questions = puzzle.questions + puzzle.bonus
    names = letters(len(questions))
    lines = [f"{name}. {write_question(scenario, q)}" for name, q in zip(names, questions, strict=True)]
    parts += [QUESTIONS_HEADING, "\n".join(lines[: len(puzzle.questions)])]
    if puzzle.bonus:
        parts += [BONUS_HEADING, "\n".join(lines[len(puzzle.questions) :])]
    parts += [FORMAT_HEADING, "\n".join(f"{name}. {q.answer_type}" for name, q in zip(names, questions, strict=True))]
    parts.append(CLOSING)
    return "\n\n".join(parts)


def formal_digest(puzzle: FormalPuzzle, unread: tuple[str, ...] = ()) -> str:
    """Returns the SHA-256 (hex) of cast, board and clues. It ignores the questions, and the order of cast and clues.

    Puzzles that differ only in their questions have the same digest, because they must not be in different splits.

    Args:
        puzzle: The formal puzzle.
        unread: Sentences of clues that are not in the grammar; the digest covers their text.
    """
    scenario = puzzle.scenario
    content = {
        "suspects": sorted(scenario.suspects),
        "weapons": sorted(scenario.weapons),
        "rooms": list(scenario.rooms),
        "columns": scenario.columns,
        "times": list(scenario.times),
        "motives": sorted(zip(scenario.motives, scenario.motive_counts, strict=True)),
        "clues": sorted(write_statement(scenario, canonical(scenario, clue)) for clue in puzzle.clues) + sorted(unread),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def canonical(scenario: Scenario, statement: Statement) -> Statement:
    """Returns the common form of statements that differ only in the order of their sides or in double negations."""
    match statement:
        case SameRoom(first, second, time) if write_ref(scenario, second) < write_ref(scenario, first):
            return SameRoom(second, first, time)
        case Together(first, second, room) if write_ref(scenario, second) < write_ref(scenario, first):
            return Together(second, first, room)
        case Beside(first, "south", second, time):
            return Beside(second, "north", first, time)
        case Beside(first, "east", second, time):
            return Beside(second, "west", first, time)
        case Either(first, second) | Iff(first, second):
            sides = sorted(
                (canonical(scenario, s) for s in (first, second)), key=lambda s: write_statement(scenario, s)
            )
            return Either(sides[0], sides[1]) if isinstance(statement, Either) else Iff(sides[0], sides[1])
        case Not(Not(inner)):
            return canonical(scenario, inner)
        case Not(inner):
            return Not(canonical(scenario, inner))
        case _:
            return statement
