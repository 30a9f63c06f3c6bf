"""Checks of a command line that cyclopts does not make."""

import math
import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from cyclopts import App, Token, convert

from artifacts.documents.parsing import text_problem
from artifacts.errors import BadInputError

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_MOST_SHOWN = 60


def check_arguments(app: App, arguments: Sequence[str]) -> None:
    """Refuses arguments that are not text, and misspelt commands that cyclopts accepts, such as `Train`.

    Raises:
        BadInputError: An argument is not UTF-8, contains a NUL, or differs from a command in case, `-` or `_`.
    """
    for number, word in enumerate(arguments, 1):
        if problem := text_problem(word):
            raise BadInputError(f"argument {number}", problem, "UTF-8 text")
    group = app
    for word in arguments:
        if word in group and not word.startswith("-"):
            group = group[word]
            continue
        commands = [name for name in group if not name.startswith("-")]
        if near := next((name for name in commands if _plain(name) == _plain(word)), None):
            raise BadInputError(
                f"command {_shown(word)!r}", "unknown", repr(near), "commands are written in lower case"
            )
        return


def exact_number(kind: type, tokens: Sequence[Token]) -> Any:
    """Converts an argument as cyclopts does, but refuses 1.5 for a whole number, and `nan` and infinities.

    Raises:
        BadInputError: `kind` is int and the text is not a whole number, or `kind` is float and it is not finite. The
            same holds for the elements of a tuple.
    """
    each = get_args(kind)[0] if get_origin(kind) is tuple else kind
    for token in tokens:
        if each is int and not _WHOLE.fullmatch(token.value):
            raise _no_number(token, "a whole number of at most 18 digits")
        if each is float and not _finite(token.value):
            raise _no_number(token, "a finite number")
    return convert(kind, tokens)


def _no_number(token: Token, expected: str) -> BadInputError:
    return BadInputError(f"{token.keyword or 'argument'} {_shown(token.value)}", "not such a number", expected)


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _shown(text: str) -> str:
    return text if len(text) < _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
