"""Reads and grades the lettered answers of a completion.

No text raises an error, and the time is linear in the length of the text. The answers of a solver that the completion
asked are not read.
"""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import cast, get_args

from stages.environments import environment
from stages.environments.capabilities import ListsValues
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Graded, Grader, Parsed, Puzzle
from stages.environments.solver_tool import own_words
from stages.environments.thoughts import answer_start

_MARKER = re.compile(r"(?<![A-Za-z0-9])([A-Z])[*_]{0,3}[.):][*_]{0,3}(?![^\s*_`\"'(\[])")
_CLOCK = re.compile(r"(?<![0-9])([0-9]{1,2}):([0-9]{2})[ \t]{0,3}([ap])\.?[ \t]?m\b\.?")
_COMMAND = re.compile(r"\\(?:boxed|text[a-z]*|math[a-z]+)\b")
_TITLE = re.compile(r"\b(mrs?|ms|dr|prof|sgt|col|capt|lt|rev|st)\.")
_MARKUP = str.maketrans(dict.fromkeys("*_`\"'“”‘’()[]{}<>\\$", " "))
_ALTERNATIVE = re.compile(
    r"[/&|]|^\W*(?:and|to|until|through|then|vs|versus)\b(?! not\b)|\b(?:or|either|maybe|perhaps|possibly|otherwise|"
    r"alternatively|else|also|plus|as well as|(?:could|might|may)(?! not\b))\b"
)
"""Words between two values that make the second value an alternative to the first."""
_LISTED = re.compile(r"(?:[^a-z0-9]|\b(?:the|in|at|a)\b)*")
"""Characters and words that may separate the values of a list."""
_CLAUSE = re.compile(r"\W*(?:was|were|is(?! the\b)|has|had|did|moved|left|never|cannot|could not)\b")
"""Words after a value that begin a statement about it, so that the value belongs to an explanation, not an answer."""
_LEAD_IN = re.compile(
    r"[^,;!?]{0,80}?(?:[:=–—-]|\b(?:is|was|were|be|used|happened))(?: (?:in|at|by|with|the|done|committed|murdered))* ?"
)
_ECHO = re.compile(r"[\W_]*[A-Z]{4,}\b")
_DOUBT = re.compile(
    r"\b(?:not|no|never|neither|nor|nobody|cannot|if|unless|whether|suppose|assume|except|but|innocent)\b|n t\b|"
    + _ALTERNATIVE.pattern
)
"""Words before a value that show that the value is not an answer."""
_OWN_LINE = re.compile(r"^[ \t]*[*_]{0,3}([A-Z])[*_]{0,3}[.):][*_]{0,3}[ \t]+\S", re.MULTILINE)
_READ_CHARACTERS = 300
"""Number of characters after a letter in which its answer is searched."""


def grade(text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
    """Returns the grade of a completion.

    `strict` reads answers as a person does. The last answer to a letter counts. Emphasis, a full stop, introductions
    (`SUSPECT:`, `the murderer is`) and explanations are ignored. A line may have several answers, and times can be
    answers. Alternatives ("Miss Peach or Mr. Green") are not answers.

    `published` is the rule by which the published accuracies were measured. It cannot read times, so its accuracy stays
    below 1 on puzzles that ask for a time.

    Args:
        text: The completion, any text.
        puzzle: Its puzzle.
        grader: Name of the rule.
    """
    text = own_words(text)
    values = cast(ListsValues, environment.get(puzzle.environment)).answer_values(puzzle)
    if grader == "published":
        answers = {letter: _published(text, letter, right, values[letter]) for letter, right in puzzle.solution.items()}
    else:
        segments = _last_segments(text)
        answers = {
            letter: _strict(segments[letter][0] if letter in segments else None, right, values[letter])
            for letter, right in puzzle.solution.items()
        }
    right_count = sum(parsed.correct for parsed in answers.values())
    return Graded(right_count / max(1, len(answers)), right_count == len(answers), answers)


def answer_ends(text: str, letters: Collection[str], grader: Grader) -> dict[str, int]:
    """Returns the number of characters up to the end of the last answer to each letter that `grade` can read."""
    text = own_words(text)
    if grader == "strict":
        return {letter: end for letter, (_, end) in _last_segments(text).items() if letter in letters}
    ends = {letter: max((m.end() for m in _published_matches(text, letter)), default=0) for letter in letters}
    return {letter: end for letter, end in ends.items() if end}


def well_formed(text: str, letters: Collection[str]) -> bool:
    """Returns whether each letter's answer begins a line: `A. something`, with or without emphasis."""
    return set(letters) <= set(_OWN_LINE.findall(text))


class LetteredAnswers:
    """Base class that reads, grades and writes lettered answers; a subclass has the methods of `ListsValues`."""

    graders = get_args(Grader)

    def grade(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
        """See `grade`."""
        return grade(text, puzzle, grader)

    def answer_ends(self, text: str, puzzle: Puzzle, grader: Grader = "strict") -> dict[str, int]:
        """See `answer_ends`."""
        return answer_ends(text, puzzle.solution.keys(), grader)

    def write_answer(self, puzzle: Puzzle) -> str:
        """See `stages.environments.logic_puzzles.answers.write_answer`."""
        return write_answer(puzzle)

    def well_formed(self, text: str, puzzle: Puzzle) -> bool:
        """Returns whether the answers after the thought have the layout that `well_formed` checks."""
        start = answer_start(text, puzzle.thinking)
        return start is not None and well_formed(text[start:], puzzle.solution.keys())


def _published_matches(text: str, letter: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"{letter}\. ([A-Za-z \.:-]+)", text)


def _published(text: str, letter: str, right: str, values: tuple[str, ...]) -> Parsed:
    last = None
    for match in _published_matches(text, letter):
        last = match
    if last is None:
        return Parsed(None, None, False, "missing")
    words = last.group(1).strip()
    value = next((v for v in values if v.lower() == words.lower()), None)
    return Parsed(words, value, words.lower() == right.lower(), "" if value is not None else "outside")


def _last_segments(text: str) -> dict[str, tuple[str, int]]:
    """Returns, for each letter, the words of its last answer and the offset of their end.

    The words follow a mark, such as `A.`. They end at the next mark, at the end of the line or after
    `_READ_CHARACTERS`. A mark without words does not count.
    """
    marks = list(_MARKER.finditer(text))
    segments: dict[str, tuple[str, int]] = {}
    for i in range(len(marks) - 1, -1, -1):
        letter = marks[i].group(1)
        if letter in segments:
            continue
        start = marks[i].end()
        end = min(start + _READ_CHARACTERS, marks[i + 1].start() if i + 1 < len(marks) else len(text))
        lines = text[start:end].splitlines()
        segment = lines[0].strip() if lines else ""
        if segment.strip("*_`. "):
            segments[letter] = segment, start + len(lines[0].rstrip())
    return segments


def plain(text: str) -> str:
    """Returns a text in lower case, without markup and dots of titles, with single spaces, and times as `hh:mm am`."""
    words = _TITLE.sub(r"\1", " ".join(_COMMAND.sub(" ", text).translate(_MARKUP).split()).lower())
    return _CLOCK.sub(lambda m: f"{m.group(1):0>2}:{m.group(2)} {m.group(3)}m", words)


@lru_cache(maxsize=1 << 12)  # most completions of a group have the same answers
def _strict(segment: str | None, right: str, values: tuple[str, ...]) -> Parsed:
    if segment is None:
        return Parsed(None, None, False, "missing")
    words = _without_opening(plain(segment))
    value, note = _first_value(words, values)
    if note == "outside" and (start := _after_lead_in(segment, words, values)) is not None:
        value, note = _first_value(words[start:], values)
    return Parsed(segment, value, value == right, note)


def _without_opening(words: str) -> str:
    for opening in ("in ", "at ", "the "):
        words = words.removeprefix(opening)
    return words


def _first_value(words: str, values: tuple[str, ...]) -> tuple[str | None, str]:
    """Returns the value at the beginning of `words`, and a note.

    The value is None if a second value follows as an alternative rather than as part of an explanation.
    """
    places = {value: _find(words, plain(value)) for value in values}
    mentioned = [value for value in values if places[value] >= 0]
    leading = [value for value in mentioned if words.startswith(plain(value))]
    if not leading:
        return None, "outside"
    value = max(leading, key=len)
    others = [other for other in mentioned if _find(plain(value), plain(other)) < 0]
    if others:
        second = min(others, key=lambda other: places[other])
        between = words[len(plain(value)) : places[second]]
        if _hedged(between, words[places[second] + len(plain(second)) :]):
            return None, "ambiguous"
    return value, ""


def _hedged(between: str, after: str) -> bool:
    """Returns whether a second value revokes the first one as an answer.

    Args:
        between: Words between the two values.
        after: Words after the second value.
    """
    if _ALTERNATIVE.search(between) or _CLAUSE.match(between):
        return True
    return _LISTED.fullmatch(between) is not None and not _CLAUSE.match(after)


def _after_lead_in(segment: str, words: str, values: tuple[str, ...]) -> int | None:
    """Returns the position of the first value if it follows an introduction (`SUSPECT:`, `the murderer is`), else None.

    Args:
        segment: The words of the completion.
        words: The same words after `plain`.
        values: The possible answers.
    """
    start = min((place for value in values if (place := _find(words, plain(value))) >= 0), default=-1)
    if start < 0 or _DOUBT.search(words, 0, start):
        return None
    echoed = _ECHO.match(segment) and len(words[:start].split()) == 1
    return start if echoed or _LEAD_IN.fullmatch(words, 0, start) else None


def _find(words: str, value: str) -> int:
    """Returns the position of `value` in `words` as whole words; -1 if it does not occur."""
    start = words.find(value)
    while start >= 0:
        end = start + len(value)
        if not (words[start - 1 : start].isalnum() or words[end : end + 1].isalnum()):
            return start
        start = words.find(value, start + 1)
    return -1
