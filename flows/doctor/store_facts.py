"""Tests whether a store can be written, how fast, and its free space; removes the test files."""

import errno
import os
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.layout import probe_key
from artifacts.store.keys import TEMPORARY_PREFIX
from artifacts.store.location import local_folder
from artifacts.store.store import S3Options, Store

_WRITE_BYTES, _CHUNK_BYTES = 64 << 20, 4 << 20
_WRITE_LIMIT_S = 1.5
_OBJECT_BYTES = 1 << 20
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
"""Errors of file systems without hard links."""
_QUICK_S3 = S3Options(connect_timeout_s=2.0, read_timeout_s=10.0, open_retry_for_s=0.0, retry_for_s=2.0)


@dataclass(frozen=True)
class StoreFacts:
    """Results of the tests of a store.

    Attributes:
        url: Address of the store.
        kind: `folder`, or the scheme of the address (`s3`).
        place: Folder that was tested: the store's, or the nearest existing folder above it; None for other stores.
        exists: Whether the store's folder or bucket exists.
        free_bytes: Free space in bytes; None if unknown.
        total_bytes: Size of the file system in bytes; None if unknown.
        write_bytes_s: Speed of a write to the disk or store, in bytes per second; None if not measured.
        creates: Whether a create-only write to an existing key is refused; None if not tested.
        error: The error of the tests, if they failed.
    """

    url: str
    kind: str
    place: Path | None = None
    exists: bool = True
    free_bytes: int | None = None
    total_bytes: int | None = None
    write_bytes_s: float | None = None
    creates: bool | None = None
    error: DeerstalkerError | None = None


def store_facts(url: str, options: S3Options = _QUICK_S3) -> StoreFacts:
    """Tests a store and returns the results; leaves no folder, bucket or file behind.

    Raises:
        BadInputError: The address is invalid.
    """
    folder = store_folder(url)
    if folder is not None:
        return folder_facts(folder)
    return object_facts(url, options)


def store_folder(url: str) -> Path | None:
    """Returns the folder of an address; None for another kind of store.

    Raises:
        BadInputError: The address is invalid.
    """
    folder = local_folder(url)
    return None if folder is None else folder.absolute()


def folder_facts(folder: Path) -> StoreFacts:
    """Tests the folder of a store, or the nearest existing folder above it, and returns the results.

    Raises:
        BadInputError: The path is a file.
    """
    url, place = str(folder), nearest_folder(folder)
    exists = place == folder
    free, total = None, None
    try:
        room = os.statvfs(place)
        free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        if exists:
            Store.open(url)
        speed, creates = _write_speed(place, free), _makes_links(place)
    except BadInputError:
        raise
    except DeerstalkerError as error:
        return StoreFacts(url, "folder", place, exists, free, total, error=error)
    except OSError as error:
        reason = DeerstalkerError(str(place), f"cannot be written: {error.strerror}")
        return StoreFacts(url, "folder", place, exists, free, total, error=reason)
    return StoreFacts(url, "folder", place, exists, free, total, speed, creates)


def nearest_folder(folder: Path) -> Path:
    """Returns the folder, or the nearest folder above it that this process can see."""
    place = folder
    while not os.path.exists(place):  # noqa: PTH110  Path.exists raises PermissionError before Python 3.14
        place = place.parent
    return place


def object_facts(url: str, options: S3Options) -> StoreFacts:
    """Tests an object store and returns the results: writes, reads and deletes an object of 1 MiB.

    Also tests whether a second create-only put of a key is refused.

    Raises:
        BadInputError: The address is invalid.
    """
    kind = url.partition("://")[0]
    try:
        store = Store.open(url, options=options)
        key, data = probe_key(secrets.token_hex(8)), secrets.token_bytes(_OBJECT_BYTES)
        try:
            started = time.monotonic()
            store.write_bytes(key, data)
            seconds = time.monotonic() - started
            if store.read_bytes(key) != data:
                raise DeerstalkerError(f"{key} in {store.url}", "not the bytes that were put", "", "check the endpoint")
        finally:
            store.delete(key)
        return StoreFacts(store.url, kind, write_bytes_s=len(data) / seconds, creates=store.refuses_second_create())
    except BadInputError:
        raise
    except DeerstalkerError as error:
        return StoreFacts(url, kind, exists=False, error=error)


def _write_speed(folder: Path, free_bytes: int) -> float:
    """Returns the speed of writing an unnamed temporary file with fsync, in bytes per second."""
    chunk = secrets.token_bytes(_CHUNK_BYTES)
    written, started = 0, time.monotonic()
    with tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX, buffering=0) as stream:
        while written < min(_WRITE_BYTES, free_bytes // 2) and time.monotonic() - started < _WRITE_LIMIT_S:
            written += stream.write(chunk)
        os.fsync(stream.fileno())
    return written / (time.monotonic() - started)


def _makes_links(folder: Path) -> bool:
    """Returns whether the file system refuses a second hard link of the same name; create-only writes rely on it."""
    first, second = (folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}" for _ in range(2))
    try:
        first.touch(exist_ok=False)
        os.link(first, second)
        try:
            os.link(first, second)
        except FileExistsError:
            return True
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    finally:
        for path in (first, second):
            with suppress(OSError):
                path.unlink()
