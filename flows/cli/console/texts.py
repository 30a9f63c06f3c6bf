"""Reads text that a command takes from a file or from stdin."""

import sys

from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_DOCUMENT, read_at_most, read_input, reason


def read_text_argument(name: str, forms: str) -> str:
    """Returns the text of a file, or of stdin if `name` is `-`; line ends become newlines.

    Args:
        forms: The forms that the argument may have, for the error message.

    Raises:
        BadInputError: The file cannot be read, or is not UTF-8.
    """
    where = "stdin" if name == "-" else name
    data = _stdin(forms) if name == "-" else read_input(name, forms)
    try:
        return data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise BadInputError(where, f"byte {error.start + 1} is not UTF-8", forms, "save it as UTF-8") from error


def _stdin(forms: str) -> bytes:
    try:
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]: it is None if the shell closed it
            raise OSError(0, "it is closed")
        return read_at_most(sys.stdin.buffer.read, LARGEST_DOCUMENT)
    except OSError as error:
        raise BadInputError("stdin", reason(error), forms) from error
