"""Reads lettered answers out of a completion and grades them; never raises, linear in the length of the text."""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from stages.puzzles import environment
from stages.puzzles.puzzle import Graded, Grader, Note, Parsed, Puzzle

_MARKER = re.compile(r"(?<![A-Za-z0-9])([A-Z])[*_]{0,3}[.):][*_]{0,3}(?![^\s*_`\"'(\[])")
_CLOCK = re.compile(r"(?<![0-9])([0-9]{1,2}):([0-9]{2})[ \t]{0,3}([ap])\.?[ \t]?m\b\.?")
_MARKUP = str.maketrans(dict.fromkeys("*_`\"'“”‘’()[]{}<>\\$", " "))
_ALTERNATIVE = re.compile(
    r"[/&|]|^\W*(?:and|to|until|through|then|vs|versus)\b(?! not\b)|\b(?:or|either|maybe|perhaps|possibly|otherwise|"
    r"alternatively|else|also|plus|as well as|(?:could|might|may)(?! not\b))\b"
)
"""Between two values it makes the second one an alternative to the first."""
_LISTED = re.compile(r"(?:[^a-z0-9]|\b(?:the|in|at|a)\b)*")
"""Between two values it says nothing: they are listed."""
_CLAUSE = re.compile(r"\W*(?:was|were|is(?! the\b)|has|had|did|moved|left|never|cannot|could not)\b")
"""Behind a value it says something about it: the value is no answer, but part of an explanation."""
_LEAD_IN = re.compile(
    r"[^,;!?]{0,80}?(?:[:=–—-]|\b(?:is|was|were|be|used|happened))(?: (?:in|at|by|with|the|done|committed|murdered))* ?"
)
_ECHO = re.compile(r"[\W_]*[A-Z]{4,}\b")
_DOUBT = re.compile(
    r"\b(?:not|no|never|neither|nor|nobody|cannot|if|unless|whether|suppose|assume|except|but|innocent)\b|n t\b|"
    + _ALTERNATIVE.pattern
)
"""Before a value it makes of it something else than an answer."""
_NOTHING = None, 0
_READ_CHARACTERS = 300
"""An answer is looked for in this many characters after its letter."""


def grade(text: str, puzzle: Puzzle, grader: Grader = "strict") -> Graded:
    """Grades `text` against the solution of `puzzle`.

    `strict` reads as a person would: the last answer to a letter counts, marks of emphasis, a final dot, what leads in
    to the answer (`SUSPECT:`, `the murderer is`) or explains it does not matter, several answers may share a line,
    times count. Alternatives ("Miss Peach or Mr. Green") are no answer.
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
    words = _without_opening(plain(said))
    value, note = _first_value(words, values)
    if note == "outside" and (start := _after_lead_in(said, words, values)) is not None:
        value, note = _first_value(words[start:], values)
    return Parsed(said, value, value == right, note)


def _without_opening(words: str) -> str:
    for opening in ("in ", "at ", "the "):
        words = words.removeprefix(opening)
    return words


def _first_value(words: str, values: tuple[str, ...]) -> tuple[str | None, Note]:
    """The value that `words` begin with; none where another one stands beside it and not in an explanation."""
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
    """Whether a second value makes the first no answer, by the words `between` the two and `after` the second."""
    if _ALTERNATIVE.search(between) or _CLAUSE.match(between):
        return True
    return _LISTED.fullmatch(between) is not None and not _CLAUSE.match(after)


def _after_lead_in(said: str, words: str, values: tuple[str, ...]) -> int | None:
    """Where the first value begins, if what stands before it only introduces it, as `SUSPECT:` or `the murderer is`."""
    start = min((place for value in values if (place := _find(words, plain(value))) >= 0), default=-1)
    if start < 0 or _DOUBT.search(words, 0, start):
        return None
    echoed = _ECHO.match(said) and len(words[:start].split()) == 1
    return start if echoed or _LEAD_IN.fullmatch(words, 0, start) else None


def _find(words: str, value: str) -> int:
    """Where `value` stands in `words` as whole words, -1 if nowhere."""
    start = words.find(value)
    while start >= 0:
        end = start + len(value)
        if not (words[start - 1 : start].isalnum() or words[end : end + 1].isalnum()):
            return start
        start = words.find(value, start + 1)
    return -1
