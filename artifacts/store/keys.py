"""Definitions that all kinds of stores share: keys, digests, errors, and the operations of a backend."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from artifacts.errors import BadInputError, IntegrityError, StoreError

Progress = Callable[[int], None]
"""Called with the number of bytes moved since the last call, from any thread."""

StartProgress = Callable[[int], Progress]
"""Called with the number of bytes to move, before the first byte is moved; returns the transfer's `Progress`."""

TEMPORARY_PREFIX = ".tmp-"
"""Beginning of the names of unfinished files in a directory store; no segment of a key may begin like this."""

_SEGMENT = re.compile(r"[A-Za-z0-9._=+@,-]+")
_MAX_SEGMENT_BYTES = 200
_MAX_KEY_BYTES = 800


class MissingKeyError(StoreError):
    """The store answered that it has nothing under a key. A store that cannot be reached never raises this error."""


class LeadsOutError(StoreError):
    """The path of a key contains a symbolic link. Its target is outside the store and is not touched."""


@dataclass(frozen=True, slots=True, order=True)
class Stray:
    """An entry in a store's folder that has no key; no operation reads, overwrites or deletes it.

    Attributes:
        path: Its path below the store's root; bytes and characters that cannot be printed are escaped.
        what: Description, such as `a symbolic link`.
    """

    path: str
    what: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A write that has not ended: it is under way, or its process was killed and its bytes stay until they are removed.

    Attributes:
        key: Key that is written; of a write to a directory store, the temporary file.
        upload: Id of the multipart upload; empty for a file.
        size_bytes: Bytes that are stored so far.
        age_s: Seconds since it began, by the clock of the S3 server; of a file, since its last change.
    """

    key: str
    upload: str
    size_bytes: int
    age_s: float


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Checksum and size of the content of one file.

    Attributes:
        sha256: 64 lower-case hexadecimal digits.
        size_bytes: Length of the content.
    """

    sha256: str
    size_bytes: int

    def __str__(self) -> str:
        return f"sha256 {self.sha256} ({self.size_bytes} bytes)"


def check_key(key: str) -> str:
    """Returns the key if every kind of store can hold it.

    Args:
        key: Segments of ASCII letters, digits and `._=+@,-`, joined by single slashes.

    Raises:
        BadInputError: The key is absolute, empty, too long, leads out of the store or has other characters.
    """
    remedy = "use segments of ASCII letters, digits and ._=+@,- joined by single slashes"
    if not key or len(key) > _MAX_KEY_BYTES:
        raise BadInputError(f"key {key[:80]!r}", f"{len(key)} characters", f"1 to {_MAX_KEY_BYTES}", remedy)
    for segment in key.split("/"):
        if segment in ("", ".", "..") or not _SEGMENT.fullmatch(segment) or len(segment) > _MAX_SEGMENT_BYTES:
            raise BadInputError(f"key {key!r}", f"segment {segment[:80]!r}", "", remedy)
        if segment.startswith(TEMPORARY_PREFIX):
            raise BadInputError(f"key {key!r}", f"segment {segment!r}", "", "such names are used for unfinished writes")
    return key


def is_key(text: str) -> bool:
    """Returns whether `check_key` accepts a string."""
    try:
        check_key(text)
    except BadInputError:
        return False
    return True


def shown(text: str) -> str:
    """Returns a string on one line, in which characters that cannot be printed are escaped: `a\\nb`, `\\udcff`."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def check_prefix(prefix: str) -> str:
    """Returns a prefix without its trailing slash. The empty prefix names the whole store.

    Raises:
        BadInputError: The prefix is not the beginning of a valid key (see `check_key`).
    """
    stripped = prefix.removesuffix("/")
    return check_key(stripped) if stripped else ""


def too_large(where: str, size_bytes: int, most_bytes: int) -> IntegrityError:
    """Returns the error for content that exceeds the largest size that is read."""
    remedy = "it is damaged or foreign; restore it, or delete it and run again"
    return IntegrityError(where, f"{size_bytes:,} bytes", f"at most {most_bytes:,}", remedy)


class Backend(Protocol):
    """The operations that differ between a directory and S3. Callers pass valid keys and prefixes only.

    `Store` has methods of the same meaning, which document arguments, results and errors.
    """

    @property
    def url(self) -> str: ...

    @property
    def parallel_transfers(self) -> int: ...

    def read(self, key: str, most_bytes: int) -> bytes: ...

    def write(self, key: str, data: bytes) -> None: ...

    def create(self, key: str, data: bytes) -> bool: ...

    def size(self, key: str) -> int: ...

    def keys(self, prefix: str) -> list[str]: ...

    def walk(self, prefix: str) -> Iterator[str]: ...

    def strays(self, prefix: str) -> list[Stray]: ...

    def folders(self, prefix: str) -> tuple[list[str], list[Stray]]: ...

    def remove(self, keys: list[str]) -> None: ...

    def unfinished(self, prefix: str) -> list[Unfinished]: ...

    def remove_unfinished(self, write: Unfinished) -> None: ...

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest: ...

    def chunks(self, key: str) -> Iterator[bytes]: ...

    def local_path(self, key: str) -> Path | None: ...

    def refuses_second_create(self) -> bool: ...

    def abandon(self) -> None: ...
