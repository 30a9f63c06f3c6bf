"""A checksum inside a JSON file over the file's own bytes, so that no flipped bit in it goes unseen."""

import hashlib
import json
import re
from collections.abc import Mapping

from artifacts.errors import IntegrityError

BLANK = "0" * 64
"""Stands in the `checksum` field while the checksum is computed."""

_FIELD = re.compile(rb'"checksum": "([0-9a-f]{64})"\n\}\n\Z')  # the last field of the file


def sealed(data: bytes) -> bytes:
    """Fills in the blank `checksum` of a JSON object that ends with this field."""
    field = _FIELD.search(data)
    if field is None or field[1] != BLANK.encode():
        raise ValueError("no blank checksum at the end")
    return data[: field.start(1)] + hashlib.sha256(data).hexdigest().encode() + data[field.end(1) :]


def sealed_json(content: Mapping[str, object]) -> bytes:
    """A JSON object as readable text, with its checksum as the last field."""
    blank = {**content, "checksum": BLANK}
    return sealed((json.dumps(blank, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def check_seal(data: bytes, where: str) -> None:
    """Checks a text that `sealed` made.

    Raises:
        IntegrityError: There is no checksum at its end, or it is not that of the other bytes.
    """
    field = _FIELD.search(data)
    blank = data[: field.start(1)] + BLANK.encode() + data[field.end(1) :] if field else data
    stated, actual = field[1].decode() if field else "none", hashlib.sha256(blank).hexdigest()
    if stated != actual:
        raise IntegrityError(where, f"checksum {stated}", actual, "the file was altered; restore or delete it")
