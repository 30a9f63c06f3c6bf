"""Reads JSON and TOML files from users: returns plain data or raises an error that names the fault."""

import json
import os.path
import tomllib
from pathlib import Path
from typing import Any

from artifacts.errors import BadInputError

DEEPEST = 32
"""Largest number of levels of nested lists and tables; Deerstalker's own documents have fewer than ten."""
_MOST_BITS = 64


def parse_json(text: str | bytes, where: str, expected: str) -> Any:
    """Reads a JSON document and checks it with `check_plain`.

    Args:
        text: The document.
        where: Its name, for error messages.
        expected: Description of a valid document, for error messages.

    Raises:
        BadInputError: The document is not JSON, not UTF-8, or fails `check_plain`.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise BadInputError(where, f"not JSON ({_reason(error)})", expected) from error
    check_plain(value, where, expected)
    return value


def parse_toml(text: str, where: str, expected: str) -> dict[str, Any]:
    """Reads a TOML document and checks it with `check_plain`; arguments and errors are those of `parse_json`."""
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(where, f"not TOML ({_reason(error)})", expected) from error
    check_plain(value, where, expected)
    return value


def check_plain(value: object, where: str, expected: str) -> None:
    """Refuses data on which later code would fail with an obscure error.

    Raises:
        BadInputError: The data is nested deeper than `DEEPEST`, holds an integer of more than 64 bits, or holds a
            string with a lone surrogate or a NUL character.
    """
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        if not level:
            return
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += [*item, *item.values()]
            elif isinstance(item, (list, tuple)):
                inner += item
            elif problem := _problem(item):
                raise BadInputError(where, problem, expected)
        level = inner
    if level:
        raise BadInputError(where, f"nested more than {DEEPEST} levels deep", expected)


def is_file(path: Path) -> bool:
    """Returns whether a path is a file; False for a name that no file can have, for which `Path.is_file` raises."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder; False for a name that no file can have, for which `Path.is_dir` raises."""
    return os.path.isdir(path)  # noqa: PTH112


def is_link(path: Path) -> bool:
    """Returns whether a path is a symbolic link; False for a name that no file can have."""
    return os.path.islink(path)  # noqa: PTH114


def exists(path: Path) -> bool:
    """Returns whether a path exists; False for a name that no file can have, for which `Path.exists` raises."""
    return os.path.exists(path)  # noqa: PTH110


def text_problem(text: str) -> str:
    """Returns why a string cannot be written to a file or passed to a system call; empty if it can."""
    if "\0" in text:
        return "the character 0 in a text"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "a lone surrogate in a text, which is not a character"
    return ""


def _problem(item: object) -> str:
    if isinstance(item, str):
        return text_problem(item)
    if isinstance(item, int) and item.bit_length() > _MOST_BITS:
        return f"an integer of {item.bit_length()} bits, more than {_MOST_BITS}"
    return ""


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    if "integer string conversion" in str(error):  # Python's message explains how to lift its limit
        return "an integer of thousands of digits"
    return str(error)
