"""Files that contain a checksum of their own content, so that every flipped bit in them is found.

A JSON object has its checksum in its last field, a list of checksums in its last line. A shard, which is written once
and never changed, has it in its name.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.errors import IntegrityError

BLANK = "0" * 64
"""Value of the `checksum` field while the checksum is computed."""


@dataclass(frozen=True)
class _Seal:
    """The format of a file's own SHA-256 at its end.

    Attributes:
        before: Text between the content and the checksum.
        after: Text between the checksum and the end of the file.
        blank: Text that is hashed after the content, in place of `before`, the checksum and `after`.
    """

    before: bytes
    after: bytes
    blank: bytes

    def add(self, content: bytes) -> bytes:
        """Returns the content with its checksum at the end."""
        return content + self.before + self._checksum(content).encode() + self.after

    def check(self, data: bytes, where: str) -> bytes:
        """Returns the content of a file that `add` made; raises IntegrityError if the checksum is missing or wrong."""
        match = re.search(re.escape(self.before) + rb"([0-9a-f]{64})" + re.escape(self.after) + rb"\Z", data)
        content = data[: match.start()] if match else data
        stated, actual = match[1].decode() if match else "none", self._checksum(content)
        if stated != actual:
            remedy = "the file was altered; restore it, or delete it and run again"
            raise IntegrityError(where, f"checksum {stated}", actual, remedy)
        return content

    def _checksum(self, content: bytes) -> str:
        return hashlib.sha256(content + self.blank).hexdigest()


_IN_JSON = _Seal(b'"checksum": "', b'"\n}\n', blank=f'"checksum": "{BLANK}"\n}}\n'.encode())
_IN_LIST = _Seal(b"# SHA-256 of the lines above: ", b"\n", blank=b"")

_DIGITS_IN_NAME = 16
_SHARD = re.compile(rf".*-([0-9a-f]{{{_DIGITS_IN_NAME}}})\.(?:parquet|json)")


def sealed(data: bytes) -> bytes:
    """Returns the text of a JSON object with its last field, a blank `checksum`, filled in.

    Raises:
        ValueError: The text does not end with a blank `checksum`.
    """
    if not data.endswith(_IN_JSON.blank):
        raise ValueError("no blank checksum at the end")
    return _IN_JSON.add(data.removesuffix(_IN_JSON.blank))


def sealed_json(content: Mapping[str, object]) -> bytes:
    """Returns a JSON object as readable text, with its checksum as the last field."""
    blank = {**content, "checksum": BLANK}
    return sealed((json.dumps(blank, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def check_seal(data: bytes, where: str) -> None:
    """Checks the text of a JSON object that `sealed` or `sealed_json` made.

    Raises:
        IntegrityError: The checksum at its end is missing or wrong.
    """
    _IN_JSON.check(data, where)


def sealed_list(lines: str) -> bytes:
    """Returns a list of checksums with a checksum of its lines in a comment at the end."""
    return _IN_LIST.add(lines.encode())


def check_sealed_list(data: bytes, where: str) -> str:
    """Checks a list that `sealed_list` made, and returns its lines.

    Raises:
        IntegrityError: The checksum at its end is missing or wrong.
    """
    return _IN_LIST.check(data, where).decode()


def shard_name(stem: str, suffix: str, data: bytes) -> str:
    """Returns the name of a shard: `STEM-CHECKSUM.SUFFIX`, with the first 16 hex digits of the SHA-256 of `data`."""
    return f"{stem}-{hashlib.sha256(data).hexdigest()[:_DIGITS_IN_NAME]}{suffix}"


def checksum_in_name(name: str) -> str | None:
    """Returns the first 16 hex digits of the SHA-256 in the name or key of a shard; None for other files."""
    match = _SHARD.fullmatch(name)
    return match[1] if match else None
