"""Files that carry a checksum of their own content, so that every flipped bit in them is found.

A file has it in one of three places: a JSON object in its last field, a list of checksums in its last line, and a
shard, which is written once and never changed, in its name.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from artifacts.errors import IntegrityError

BLANK = "0" * 64
"""Value of the `checksum` field while the checksum is computed."""


@dataclass(frozen=True)
class Seal:
    """A place at the end of a file for the SHA-256 of that file.

    Attributes:
        before: Text between the content and the checksum.
        after: Text between the checksum and the end of the file.
        covers_itself: Whether the checksum is that of the whole file with a blank checksum; otherwise it is that of the
            content alone.
    """

    before: bytes
    after: bytes
    covers_itself: bool

    def add(self, content: bytes) -> bytes:
        """Returns the file that consists of the content and its checksum."""
        return content + self._end(self._checksum(content))

    def check(self, data: bytes, where: str) -> bytes:
        """Checks a file that `add` made, and returns its content.

        Raises:
            IntegrityError: There is no checksum at the end, or it is not that of the content.
        """
        match = self._pattern.search(data)
        content = data[: match.start()] if match else data
        stated, actual = match[1].decode() if match else "none", self._checksum(content)
        if stated != actual:
            remedy = "the file was altered; restore it, or delete it and run again"
            raise IntegrityError(where, f"checksum {stated}", actual, remedy)
        return content

    def content_of(self, data: bytes) -> bytes:
        """Returns the content of a file whose checksum is still blank.

        Raises:
            ValueError: There is no blank checksum at the end.
        """
        blank = self._end(BLANK)
        if not data.endswith(blank):
            raise ValueError("no blank checksum at the end")
        return data.removesuffix(blank)

    def _checksum(self, content: bytes) -> str:
        return hashlib.sha256(content + (self._end(BLANK) if self.covers_itself else b"")).hexdigest()

    def _end(self, checksum: str) -> bytes:
        return self.before + checksum.encode() + self.after

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(re.escape(self.before) + rb"([0-9a-f]{64})" + re.escape(self.after) + rb"\Z")


_JSON_SEAL = Seal(b'"checksum": "', b'"\n}\n', covers_itself=True)
_LIST_SEAL = Seal(b"# SHA-256 of the lines above: ", b"\n", covers_itself=False)

_DIGITS_IN_NAME = 16
_SHARD = re.compile(r".*-([0-9a-f]{16})\.(?:parquet|json)")


def sealed(data: bytes) -> bytes:
    """Returns the text of a JSON object with its last field, a blank `checksum`, filled in."""
    return _JSON_SEAL.add(_JSON_SEAL.content_of(data))


def sealed_json(content: Mapping[str, object]) -> bytes:
    """Returns a JSON object as readable text, with its checksum as the last field."""
    blank = {**content, "checksum": BLANK}
    return sealed((json.dumps(blank, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def check_seal(data: bytes, where: str) -> None:
    """Checks the text of a JSON object that `sealed` or `sealed_json` made.

    Raises:
        IntegrityError: There is no checksum at its end, or it is not that of the other bytes.
    """
    _JSON_SEAL.check(data, where)


def sealed_list(lines: str) -> bytes:
    """Returns a list of checksums, one a line, with a checksum of the lines in a comment at the end."""
    return _LIST_SEAL.add(lines.encode())


def check_sealed_list(data: bytes, where: str) -> str:
    """Checks a list that `sealed_list` made, and returns its lines.

    Raises:
        IntegrityError: There is no checksum at its end, or it is not that of the lines.
    """
    return _LIST_SEAL.check(data, where).decode()


def shard_name(stem: str, suffix: str, data: bytes) -> str:
    """Returns the name of a shard: `STEM-CHECKSUM.SUFFIX`, with the first 16 hex digits of the SHA-256 of `data`."""
    return f"{stem}-{hashlib.sha256(data).hexdigest()[:_DIGITS_IN_NAME]}{suffix}"


def checksum_in_name(name: str) -> str | None:
    """Returns the first 16 hex digits of a shard's SHA-256, as its name or key states them; None for other files."""
    match = _SHARD.fullmatch(name)
    return match[1] if match else None
