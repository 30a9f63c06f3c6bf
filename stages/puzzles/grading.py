"""Reads lettered answers out of a completion and grades them; never raises, linear in the length of the text."""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from stages.puzzles import environment
from stages.puzzles.puzzle import Graded, Grader, Parsed, Puzzle

_MARKER = re.compile(r"(?<![A-Za-z0-9])([A-Z])[*_]{0,3}[.):][*_]{0,3}(?![^\s*_`\"'(\[])")
_CLOCK = re.compile(r"(?<![0-9])([0-9]{1,2}):([0-9]{2})[ \t]{0,3}([ap])\.?[ \t]?m\b\.?")
_MARKUP = str.maketrans(dict.fromkeys("*_`\"'“”‘’()[]{}<>\\$", " "))
_NOTHING = None, 0
_READ_CHARACTERS = 300
"""An answer is looked for in this many characters after its letter."""


def grade(text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
    """Grades `text` against the solution of `puzzle`.

    `strict` reads as a person would: the last answer to a letter counts, marks of emphasis, a final dot or an
    explanation after the answer do not matter, several answers may share a line, times count.
    `published` is the rule behind the published accuracies; it cannot read times, so it has a ceiling below 1.

    Args:
        text: A completion; any text at all.
        puzzle: The puzzle it answers.
        grader: Which of the two rules to apply.
    """
    values = environment.get(puzzle.environment).answer_values(puzzle)
    if grader == "published":
        answers = {letter: _published(text, letter, right, values[letter]) for letter, right in puzzle.solution.items()}
    else:
        said = _last_segments(text)
        answers = {
            letter: _strict(said.get(letter, _NOTHING)[0], right, values[letter])
            for letter, right in puzzle.solution.items()
        }
    right_count = sum(parsed.correct for parsed in answers.values())
    return Graded(right_count / max(1, len(answers)), right_count == len(answers), answers)


def answers_end(text: str, letters: Collection[str], grader: Grader) -> int:
    """Where the last of the lettered answers that `grade` reads ends: characters before it and with it, 0 if none."""
    if grader == "strict":
        return max((end for letter, (_, end) in _last_segments(text).items() if letter in letters), default=0)
    return max((found.end() for letter in letters for found in _published_matches(text, letter)), default=0)


def _published_matches(text: str, letter: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"{letter}\. ([A-Za-z \.:-]+)", text)


def _published(text: str, letter: str, right: str, values: tuple[str, ...]) -> Parsed:
    last = None
    for found in _published_matches(text, letter):
        last = found
    if last is None:
        return Parsed(None, None, False, "missing")
    said = last.group(1).strip()
    value = next((v for v in values if v.lower() == said.lower()), None)
    return Parsed(said, value, said.lower() == right.lower(), "" if value is not None else "outside")


def _last_segments(text: str) -> dict[str, tuple[str, int]]:
    """The words after the last mark of each letter, up to the next mark or the end of the line, and where they end."""
    marks = list(_MARKER.finditer(text))
    found: dict[str, tuple[str, int]] = {}
    for i in range(len(marks) - 1, -1, -1):
        letter = marks[i].group(1)
        if letter in found:
            continue
        start = marks[i].end()
        end = min(start + _READ_CHARACTERS, marks[i + 1].start() if i + 1 < len(marks) else len(text))
        lines = text[start:end].splitlines()
        segment = lines[0].strip() if lines else ""
        if segment.strip("*_`. "):
            found[letter] = segment, start + len(lines[0].rstrip())
    return found


def plain(text: str) -> str:
    """`text` in lower case, without markup, with single spaces, and every clock time as `hh:mm am`."""
    words = " ".join(text.translate(_MARKUP).split()).lower()
    return _CLOCK.sub(lambda m: f"{m.group(1):0>2}:{m.group(2)} {m.group(3)}m", words)


@lru_cache(maxsize=1 << 16)  # the completions of a group mostly say the same
def _strict(said: str | None, right: str, values: tuple[str, ...]) -> Parsed:
    if said is None:
        return Parsed(None, None, False, "missing")
    words = plain(said)
    for opening in ("in ", "at ", "the "):
        words = words.removeprefix(opening)
    named = {value: _mentions(words, plain(value)) for value in values}
    mentioned = [value for value in values if named[value]]
    leading = [value for value in mentioned if words.startswith(plain(value))]
    if not leading:
        return Parsed(said, None, False, "outside")
    value = max(leading, key=len)
    if any(not _mentions(plain(value), plain(other)) for other in mentioned):
        return Parsed(said, None, False, "ambiguous")
    return Parsed(said, value, value == right)


def _mentions(words: str, value: str) -> bool:
    """Whether `value` stands in `words` as whole words."""
    start = words.find(value)
    while start >= 0:
        end = start + len(value)
        if not (words[start - 1 : start].isalnum() or words[end : end + 1].isalnum()):
            return True
        start = words.find(value, start + 1)
    return False
