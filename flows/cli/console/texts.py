"""Reads text that a command takes from a file or from stdin."""

import sys
from pathlib import Path

from artifacts.errors import BadInputError


def read_text_argument(name: str, forms: str) -> str:
    """Returns the text of a file, or of stdin if `name` is `-`; line ends become newlines.

    Args:
        forms: The forms that the argument may have, for the error message.

    Raises:
        BadInputError: The file cannot be read, or is not UTF-8.
    """
    where = "stdin" if name == "-" else name
    try:
        data = _stdin() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInputError(where, f"cannot be read ({reason})", forms) from error
    try:
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise BadInputError(where, f"byte {error.start + 1} is not UTF-8", forms, "save it as UTF-8") from error


def _stdin() -> bytes:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]: it is None if the shell closed it
        raise OSError(0, "it is closed")
    return sys.stdin.buffer.read()
