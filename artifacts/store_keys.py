"""What every kind of store agrees on: keys, digests, the error for absence and the operations a backend offers."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from artifacts.errors import BadInputError, StoreError

Progress = Callable[[int], None]
"""Called with the number of bytes moved since the last call, from any thread."""

Watch = Callable[[int], Progress]
"""Called with the number of bytes to move before the first of them does."""

TEMPORARY_PREFIX = ".tmp-"
"""File names that begin so are unfinished writes of a directory store; no key has such a segment."""

_SEGMENT = re.compile(r"[A-Za-z0-9._=+@,-]+")
_MAX_SEGMENT_BYTES = 200
_MAX_KEY_BYTES = 800


class MissingKeyError(StoreError):
    """The store answered, and it holds nothing under that key. Never raised for a store that cannot be reached."""


class LeadsOutError(StoreError):
    """A symbolic link stands in the way of a key: what is behind it is not in the store, and is not touched."""


@dataclass(frozen=True, slots=True, order=True)
class Stray:
    """Something in a store's place that no key names, and that nothing reads, overwrites or deletes.

    Attributes:
        path: Where it is, below the store's root; bytes and characters that would not print are escaped.
        what: What it is.
    """

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What identifies the content of one stored file.

    Attributes:
        sha256: 64 lower-case hexadecimal digits.
        size_bytes: Length of the content.
    """

    sha256: str
    size_bytes: int

    def __str__(self) -> str:
        return f"sha256 {self.sha256} ({self.size_bytes} bytes)"


def check_key(key: str) -> str:
    """Returns the key if every store can hold it, and a person can read it.

    Args:
        key: Segments of ASCII letters, digits and `._=+@,-`, joined by single slashes.

    Raises:
        BadInputError: If the key is absolute, empty, too long, leaves the store or has other characters.
    """
    remedy = "use segments of ASCII letters, digits and ._=+@,- joined by single slashes"
    if not key or len(key) > _MAX_KEY_BYTES:
        raise BadInputError(f"key {key[:80]!r}", f"{len(key)} characters", f"1 to {_MAX_KEY_BYTES}", remedy)
    for segment in key.split("/"):
        if segment in ("", ".", "..") or not _SEGMENT.fullmatch(segment) or len(segment) > _MAX_SEGMENT_BYTES:
            raise BadInputError(f"key {key!r}", f"segment {segment[:80]!r}", "", remedy)
        if segment.startswith(TEMPORARY_PREFIX):
            raise BadInputError(f"key {key!r}", f"segment {segment!r}", "", "such names are kept for unfinished writes")
    return key


def is_key(text: str) -> bool:
    """Returns whether `check_key` takes a text."""
    try:
        check_key(text)
    except BadInputError:
        return False
    return True


def shown(text: str) -> str:
    """A name that others chose, on one line: what would not print is escaped, as in `a\\nb` or `\\udcff`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def check_prefix(prefix: str) -> str:
    """Returns the prefix without a trailing slash. The empty prefix names the whole store."""
    stripped = prefix.removesuffix("/")
    return check_key(stripped) if stripped else ""


class Backend(Protocol):
    """The operations that differ between a directory, memory and S3. Keys and prefixes arrive checked."""

    @property
    def url(self) -> str: ...

    @property
    def parallel_transfers(self) -> int: ...

    def read(self, key: str) -> bytes: ...

    def write(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> bool: ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int: ...

    def keys(self, prefix: str) -> list[str]: ...

    def strays(self, prefix: str) -> list[Stray]: ...

    def remove(self, keys: list[str]) -> None: ...

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest: ...

    def chunks(self, key: str) -> Iterator[bytes]: ...

    def local_path(self, key: str) -> Path | None: ...

    def refuses_second_create(self) -> bool: ...

    def abandon(self) -> None: ...
