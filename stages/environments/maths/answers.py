r"""Finds the final answer of a completion: the text in a `\boxed{}`, in `<answer>` or after `Answer:`.

Every function accepts any text and runs in time linear in its length.
"""

import re
from collections import deque
from dataclasses import dataclass
from typing import Literal, get_args

from stages.environments.question_file.boxes import closed_boxes
from stages.environments.single_answer import between_tags

AnswerIn = Literal["last_box", "first_box", "answer_tag", "answer_line", "anywhere"]
ANSWERS_IN: tuple[AnswerIn, ...] = get_args(AnswerIn)
_TOKEN = re.compile(r"\\f?boxed[ \t]{0,8}\{|\\[{}\\]|[{}]")
_ENDS_IN_BACKSLASH = re.compile(r"(?<!\\)\\\Z")
_ANSWER_LINE = re.compile(r"answer[*_]{0,3}[ \t]{0,8}:[*_]{0,3}[ \t]{0,8}([^\n]+)", re.IGNORECASE)
_SEARCHED_FOR_LINE = 300
"""Characters at the end of a completion in which `Answer:` is searched, as DAPO's grader does."""


@dataclass(frozen=True)
class Span:
    """A part of a text.

    Attributes:
        words: The characters of the part.
        end: Number of characters of the text up to the end of the part, with the brace that closes a box.
    """

    words: str
    end: int


def final_answer(text: str, answer_in: AnswerIn = "last_box") -> Span | None:
    """Returns the final answer in a text without thoughts, as it is written; None if there is none.

    Args:
        text: Any text.
        answer_in: The place of the answer (see `MathsConfig.answer_in`); `anywhere` returns the whole text.
    """
    match answer_in:
        case "last_box" | "first_box":
            return _box(text, 0, first=answer_in == "first_box")
        case "answer_tag":
            return _tagged(text)
        case "answer_line":
            return _line(text)
        case "anywhere":
            return Span(text, len(text))


def without_dollars(words: str) -> str:
    r"""Returns an answer without the `$` around it, or unchanged if it holds others, as in `$3$, $4$`.

    The `$` of `\$` is no such mark.
    """
    outer = words.strip()
    inner = outer.strip("$").strip()
    if outer.endswith("$") and _ENDS_IN_BACKSLASH.search(inner):
        inner += "$"
    return outer if has_dollars(inner) else inner


def has_dollars(words: str) -> bool:
    r"""Returns whether an answer holds a `$` other than `\$`."""
    return "$" in words.replace(r"\$", "")


def _box(text: str, start: int, *, first: bool) -> Span | None:
    """Returns the content of the closed box that begins first or last; None if there is none.

    Of nested boxes, the last is the innermost.
    """
    chosen: tuple[int, int] | None = None
    for opened, closed in closed_boxes(_TOKEN, text, start):
        if chosen is None or (opened < chosen[0]) == first:
            chosen = opened, closed
    return None if chosen is None else Span(text[slice(*chosen)], chosen[1] + 1)


def _inside(text: str, start: int, end: int) -> Span:
    """Returns the last box of a part, or the whole part if it has none."""
    boxed = _box(text[:end], start, first=False)
    return Span(text[start:end] if boxed is None else boxed.words, end)


def _tagged(text: str) -> Span | None:
    words = between_tags(text)
    return None if words is None else _inside(text, *words)


def _line(text: str) -> Span | None:
    """Returns the rest of the line after the last `Answer:` among the last characters; None if there is none."""
    last = deque(_ANSWER_LINE.finditer(text, max(0, len(text) - _SEARCHED_FOR_LINE)), maxlen=1)
    return _inside(text, *last[0].span(1)) if last else None
