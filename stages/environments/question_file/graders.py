"""Graders of questions with one answer: each reads an answer from any text, in linear time, without an error.

A pattern of the user is searched by polars, whose regular expressions (Rust's) never run exponentially.
"""

import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import polars as pl

from stages.environments.puzzle import FileGrader
from stages.environments.question_file.boxes import closed_boxes

_MARKER = re.compile(r"(?<![a-z0-9])answer[*_]{0,3}[ \t]?:[*_]{0,3}", re.IGNORECASE | re.ASCII)
_THOUSANDS = r"(?:,|\{,\}|\\,)"
_DIGITS = rf"(?:[0-9]{{1,3}}(?:{_THOUSANDS}[0-9]{{3}}){{1,150}}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+"
_INDIAN = r"[0-9]{1,2}(?:,[0-9]{2}){1,150},[0-9]{3}(?![0-9])(?:\.[0-9]+)?"  # 1,00,000
_CONTINENTAL = (
    r"[0-9]{1,3}(?:\.[0-9]{3}){1,150},[0-9]+(?![0-9]|[.,][0-9])|[0-9]{1,3}(?:\.[0-9]{3}){2,150}(?![0-9]|[.,][0-9])"
)
"""Numbers with dots between thousands: 1.234,5 and 1.234.567. 1.234 alone stays a decimal fraction."""
_NARROW = r"(?:[\u00a0\u2009\u202f~]|\\[,; ])"
_SPACED = (
    rf"[1-9][0-9]{{0,2}}(?:(?:{_NARROW}[0-9]{{3}}){{1,150}}|(?: [0-9]{{3}}){{2,150}}|[ ]000)(?![0-9])(?:\.[0-9]+)?"
)
"""Numbers with spaces between thousands. Of two groups with a plain space only 10 000 is surely one number."""
_RAISED = r"(?:\^|\*\*)(?:\{(?P<{0}>-?[0-9]{1,3})\}|(?P<{0}_plain>-?[0-9]{1,3})(?![0-9]))"
"""A power, as in 10^6, 10^{-6} and 10**6."""
_MINUS = r"[-\u2212]"
_NUMBER = re.compile(
    r"(?<![A-Za-z}]\^)(?<![A-Za-z}]\^\{)(?<![a-z](?=[23](?![0-9.,/])))"  # not the powers of m^2 and cm2
    rf"(?P<sign>(?<![\w)\]}}]){_MINUS})?(?:\\?[$€£¥](?P<after>{_MINUS})?)?"
    r"(?:(?P<whole>(?<![0-9.,])[0-9]{1,9})(?:[ ]?(?=\\[dt]?frac)|[ ](?=[0-9]{1,9}/[0-9])))?(?:"
    r"\\[dt]?frac(?:\{(?P<over>-?[0-9]+)\}\{(?P<under>[0-9]+)\}|(?P<top>[0-9])(?P<bottom>[0-9]))|"
    rf"(?<![0-9])(?P<digits>(?P<continental>{_CONTINENTAL})|{_SPACED}|{_INDIAN}|{_DIGITS})"
    r"(?:[eE](?P<power>[-+]?[0-9]{1,3})(?![0-9A-Za-z])"
    rf"|[ ]?(?:[x×*·]|\\times|\\cdot)[ ]?10{_RAISED.replace('{0}', 'of_ten')}|{_RAISED.replace('{0}', 'raised')})?"
    r"(?:[ ]?/[ ]?(?P<divisor>[0-9]+))?)"
)
_SOLUTION_END = "####"
"""Separates a worked solution from its number, as in GSM8K."""
_LONGEST_NUMBER = 400
"""Characters of the longest number that is read; Python refuses integers of thousands of digits."""
_LETTER = r"(?:[A-HJ-Z](?!\w|'\w)|I(?!\w|'\w| [a-z]))"  # "I think" names no choice
_FIRST_LETTER = re.compile(
    rf"[\s*_`\"'$(\[]{{0,8}}(?:\\boxed\{{)?({_LETTER}|[a-z](?=[):]|[*_`\"'.]{{0,4}}[ \t]{{0,8}}(?:\n|$)))"
)
_STAND_ALONE = re.compile(rf"(?<![\w']){_LETTER}")
_IN_PARENTHESES = re.compile(r"\(([A-Z])\)")
_ALONE = re.compile(r"[ \t*_`\"'.\[]{0,8}([A-Z])[ \t*_`\"'.):\]\r]{0,8}")
_ONLY_LETTER = re.compile(r"\(?([A-Za-z])\)?(?:[.):][\s\S]*)?")
_BRACE = re.compile(r"\\boxed[ \t]{0,8}\{|\\[{}]|[{}]")
_SEARCHED = 2000
"""Number of characters at the end of a text in which a user's pattern is searched: many matches take quadratic time."""
_OPEN, _GROUP, _CLOSE = "\ue000", "\ue001", "\ue002"
_UNUSABLE = re.compile(r"[\ud800-\udfff\ue000-\ue002]")
"""Characters that polars cannot hold (lone surrogates), and those that mark matches."""


@dataclass(frozen=True)
class Reading:
    """An answer in a text.

    Attributes:
        words: The answer as it is written.
        value: The value that is compared: a number, or a normalised text.
        end: Number of characters of the text up to the end of the answer.
    """

    words: str
    value: Fraction | str
    end: int


def read_answer(text: str, grader: FileGrader, pattern: str = "") -> Reading | None:
    """Returns the answer in a completion, which may be any text; None if there is none.

    Args:
        text: The completion.
        grader: Rule by which it is read (see `QuestionFileConfig.grader`).
        pattern: The pattern of the rule `regex`.
    """
    match grader:
        case "exact":
            return _exact(text)
        case "choice":
            return _choice(text)
        case "number":
            return _number(text)
        case "boxed":
            return _boxed(text)
        case "regex":
            return _matched(text, pattern)


@lru_cache(maxsize=1 << 16)  # the completions of a group have the same right answer
def read_gold(gold: str, grader: FileGrader) -> Reading | None:
    """Returns the right answer of a question as a grader reads it; None if the grader cannot read it.

    A right letter must stand alone or before `.`, `)` or `:`. A right answer needs no box, and the pattern of `regex`
    is not searched in it.
    """
    match grader:
        case "exact" | "number":
            return read_answer(gold, grader)
        case "choice":
            letter = _ONLY_LETTER.fullmatch(gold.strip())
            return Reading(letter.group(1).upper(), letter.group(1).upper(), letter.end(1)) if letter else None
        case "boxed":
            return _boxed(gold) or _content(gold, len(gold))
        case "regex":
            return _folded(gold, len(gold))


def written(answer: str, grader: FileGrader) -> str:
    """Returns a right answer in the form that a grader reads; under `regex` the answer alone."""
    gold = read_gold(answer, grader)
    words = answer if gold is None else gold.words
    if grader == "regex":
        return words
    return f"\\boxed{{{words}}}" if grader == "boxed" else f"Answer: {words}"


def can_read(answer: str, grader: FileGrader) -> bool:
    """Returns whether a grader can read a right answer, and reads the same value in the text of `written`.

    A right answer is not read as a number if it has several, such as `3 or 4`; numbers before `####` or `Answer:` are
    those of a solution.
    """
    gold = read_gold(answer, grader)
    if gold is None or grader == "regex":
        return gold is not None
    if grader == "number":
        start = max(answer.rfind(_SOLUTION_END), _after_marker(answer) or 0)
        if len({_value(match) for match in _NUMBER.finditer(answer, start)}) > 1:
            return False
    reading = read_answer(written(answer, grader), grader)
    return reading is not None and reading.value == gold.value


READABLE: dict[FileGrader, str] = {
    "exact": "a text",
    "choice": "a letter, such as B or (B)",
    "number": "one number, such as 1,234.5 or 7/2, or a solution that ends in #### and the number",
    "boxed": "a text with balanced braces",
    "regex": "a text",
}
"""The right answers that each grader can read, for error messages."""


def pattern_problem(pattern: str) -> str:
    """Returns why a pattern cannot be used; empty if it can."""
    try:
        groups = pl.Series([""]).str.extract_groups(pattern).struct.fields
    except pl.exceptions.PolarsError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "it is not valid")
        return reason.removeprefix("error:").removeprefix("regex error:").strip()
    return "" if groups else "it has no group; put the part that is the answer into parentheses"


def _after_marker(text: str) -> int | None:
    """Returns the position after the last `Answer:`; None if there is none."""
    last = _last(_MARKER, text, 0)
    return last.end() if last else None


def _last(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Returns the last match from a position on; None if there is none."""
    matches = deque(pattern.finditer(text, start), maxlen=1)
    return matches[0] if matches else None


def _exact(text: str) -> Reading | None:
    start = _after_marker(text) or 0
    return _folded(text[start:], len(text.rstrip()))


def folded(words: str) -> str:
    """Returns what texts have in common that differ in spaces, letter case and the composition of characters only."""
    return " ".join(unicodedata.normalize("NFC", words).split()).casefold()


def _folded(words: str, end: int) -> Reading | None:
    value = folded(words)
    value = value.strip("*` ") or value  # bold and code of Markdown
    return Reading(words.strip(), value, end) if value else None


def _choice(text: str) -> Reading | None:
    start = _after_marker(text)
    if start is None:
        return _letter_without_marker(text)
    # A letter directly after the marker is the answer: "Answer: B. I am sure" means B, although I also stands alone.
    if (first := _FIRST_LETTER.match(text, start)) is not None:
        return Reading(first.group(1), first.group(1).upper(), first.end(1))
    last = _last(_STAND_ALONE, text, start)
    return Reading(last.group(), last.group(), last.end()) if last else None


def _letter_without_marker(text: str) -> Reading | None:
    last: tuple[int, str] | None = None
    for match in _IN_PARENTHESES.finditer(text):
        last = match.end(1), match.group(1)
    position = 0
    for line in text.split("\n"):
        if (alone := _ALONE.fullmatch(line)) and (last is None or position + alone.end(1) > last[0]):
            last = position + alone.end(1), alone.group(1)
        position += len(line) + 1
    return None if last is None else Reading(last[1], last[1], last[0])


def _number(text: str) -> Reading | None:
    last = _last(_NUMBER, text, _after_marker(text) or 0)
    value = None if last is None else _value(last)
    return None if last is None or value is None else Reading(last.group(), value, last.end())


def _value(match: re.Match[str]) -> Fraction | None:
    """Returns the exact value of a number; None if it is too long, too large, or divides by 0."""
    if len(match.group()) > _LONGEST_NUMBER:
        return None
    parts = match.groupdict()
    if parts["over"] or parts["top"]:
        top, bottom = Fraction(parts["over"] or parts["top"]), int(parts["under"] or parts["bottom"])
    else:
        digits = parts["digits"]
        if parts["continental"] is not None:
            digits = digits.replace(".", "").replace(",", ".")
        top, bottom = Fraction(re.sub(r"[^0-9.]", "", digits)), int(parts["divisor"] or 1)
        raised = int(parts["raised"] or parts["raised_plain"] or 1)
        if len(digits) * abs(raised) > _LONGEST_NUMBER or (top == 0 and raised < 0):
            return None
        top = top**raised * Fraction(10) ** int(parts["power"] or parts["of_ten"] or parts["of_ten_plain"] or 0)
    if bottom == 0:
        return None
    top += int(parts["whole"] or 0) * bottom
    return (-top if parts["sign"] or parts["after"] else top) / bottom


def _boxed(text: str) -> Reading | None:
    """Reads the last box with balanced braces, of nested boxes the innermost; None if there is none."""
    last = max(closed_boxes(_BRACE, text), default=None)
    return None if last is None else _content(text[slice(*last)], last[1] + 1)


def _content(words: str, end: int) -> Reading | None:
    """Reads the content of a box: a number alone, or else a text with single spaces; None if it is empty."""
    plain = " ".join(unicodedata.normalize("NFC", words).split()).strip("$").strip()
    number = _NUMBER.fullmatch(plain.rstrip(" $€£¥%\\"))
    value = None if number is None else _value(number)
    return Reading(words.strip(), plain if value is None else value, end) if plain else None


def _matched(text: str, pattern: str) -> Reading | None:
    searched = _UNUSABLE.sub(" ", text[-_SEARCHED:])
    marked = pl.Series([searched]).str.replace_all(pattern, f"{_OPEN}${{0}}{_GROUP}${{1}}{_CLOSE}")[0]
    _, opened, last = marked.rpartition(_OPEN)
    if not opened:
        return None
    words, _, rest = last.partition(_GROUP)[2].partition(_CLOSE)
    return _folded(words, len(text) - len(rest))
