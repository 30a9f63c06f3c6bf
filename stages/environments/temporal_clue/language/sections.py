"""Divides a prompt into its parts: lists, board, clues, questions. The story before the first list is free text."""

import re
from dataclasses import dataclass
from functools import lru_cache

from artifacts.errors import BadInputError
from stages.environments.temporal_clue.formal import Scenario
from stages.environments.temporal_clue.language.text import (
    BOARD_HEADING,
    BONUS_HEADING,
    CLUES_HEADING,
    FORMAT_HEADING,
    QUESTIONS_HEADING,
    ROOMS_HEADING,
    SHARED_MOTIVES_HEADING,
    TIMES_HEADING,
    UNIQUE_MOTIVES_HEADING,
    WEAPONS_HEADING,
)

_LETTERED = re.compile(r"([A-Z])\. (.+)")
_NUMBER = re.compile(r"[0-9]{1,3}")
_COUNTED = re.compile(r"(.+) \((\d{1,3}) suspects?\)")


@dataclass(frozen=True)
class Sections:
    """The parts of a prompt.

    Attributes:
        scenario: Cast and board.
        clues: Sentences of the clues, in order.
        questions: Main questions: pairs of letter and sentence.
        bonus: Bonus questions: pairs of letter and sentence.
        form: Answer types: pairs of letter and type, such as `ROOM`.
    """

    scenario: Scenario
    clues: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]
    bonus: tuple[tuple[str, str], ...]
    form: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def cut(prompt: str) -> Sections:
    """Returns the parts of a prompt.

    Raises:
        BadInputError: A part that every puzzle has is missing or malformed.
    """
    blocks = [block.strip("\n") for block in re.split(r"\n[ \t]*\n", prompt.replace("\r\n", "\n").strip())]
    stripped = [block.strip() for block in blocks]
    after = {block: blocks[i + 1] for i, block in enumerate(stripped[:-1])}

    def part(heading: str, *, required: bool = True) -> str:
        if heading in after:
            return after[heading]
        if required:
            raise BadInputError("prompt", "a part is missing", f"a paragraph that reads {heading!r}")
        return ""

    if WEAPONS_HEADING not in stripped or stripped.index(WEAPONS_HEADING) < 1:
        raise BadInputError("prompt", "a part is missing", f"suspects, then a paragraph that reads {WEAPONS_HEADING!r}")
    suspects = _bullets(blocks[stripped.index(WEAPONS_HEADING) - 1], "suspects")
    rooms = tuple(re.sub(r"^\d+\. ", "", line.strip()) for line in part(ROOMS_HEADING).splitlines())
    motives, counts = _motives(
        part(UNIQUE_MOTIVES_HEADING, required=False), part(SHARED_MOTIVES_HEADING, required=False), len(suspects)
    )
    times = part(TIMES_HEADING, required=False)
    scenario = Scenario(
        suspects=suspects,
        weapons=_bullets(part(WEAPONS_HEADING), "weapons"),
        rooms=rooms,
        columns=_columns(part(BOARD_HEADING), len(rooms)),
        times=_bullets(times, "times") if times else (),
        motives=motives,
        motive_counts=counts,
    )
    return Sections(
        scenario,
        tuple(line.strip()[2:] for line in part(CLUES_HEADING).splitlines()),
        _lettered(part(QUESTIONS_HEADING, required=False)),
        _lettered(part(BONUS_HEADING, required=False)),
        _lettered(part(FORMAT_HEADING)),
    )


def _bullets(block: str, name: str) -> tuple[str, ...]:
    lines = [line.strip() for line in block.splitlines()]
    if not lines or not all(line.startswith(("• ", "- ", "* ")) for line in lines):
        raise BadInputError(f"prompt, {name}", repr(block[:80]), "a list with one item a line")
    items = tuple(line[2:].strip() for line in lines)
    if len(set(items)) != len(items):
        raise BadInputError(f"prompt, {name}", "an item occurs twice", "distinct items")
    return items


def _lettered(block: str) -> tuple[tuple[str, str], ...]:
    matches = [_LETTERED.fullmatch(line.strip()) for line in block.splitlines()]
    return tuple((match.group(1), match.group(2)) for match in matches if match)


def _motives(unique: str, shared: str, suspects: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if unique:
        names = _bullets(unique, "motives")
        if len(names) != suspects:
            raise BadInputError("prompt, motives", f"{len(names)} motives", f"one for each of {suspects} suspects")
        return names, (1,) * len(names)
    if not shared:
        return (), ()
    matches = [_COUNTED.fullmatch(item) for item in _bullets(shared, "motives")]
    counts = tuple(int(match.group(2)) for match in matches if match)
    if len(counts) != len(matches) or sum(counts) != suspects:
        raise BadInputError("prompt, motives", repr(shared[:120]), f"motives with counts that add up to {suspects}")
    return tuple(match.group(1) for match in matches if match), counts


def _columns(board: str, rooms: int) -> int:
    rows = [line.strip()[2:-2].split("|") for line in board.splitlines() if line.strip().startswith("W ")]
    numbers = [cell.strip() for row in rows for cell in row if cell.strip() != "-"]
    regular = rows and all(len(row) == len(rows[0]) for row in rows)
    if not regular or [int(n) if _NUMBER.fullmatch(n) else -1 for n in numbers] != list(range(1, rooms + 1)):
        raise BadInputError("prompt, board", repr(board[:120]), f"a map of the rooms 1 to {rooms}, row by row")
    return len(rows[0])
