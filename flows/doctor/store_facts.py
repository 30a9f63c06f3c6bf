"""Facts of a store: whether it can be written, how fast, how much room it has. What is written there is removed."""

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
"""How a file system without hard links refuses one."""
_QUICK_S3 = S3Options(connect_timeout_s=2.0, read_timeout_s=10.0, open_retry_for_s=0.0, retry_for_s=2.0)


@dataclass(frozen=True)
class StoreFacts:
    """A store as it was met.

    Attributes:
        url: Its address.
        kind: Kind of store.
        place: Of a folder: where it was tried; the nearest folder above one that does not exist yet.
        exists: Whether the store's own folder or bucket is there.
        free_bytes: Room that is left; None where the store does not tell.
        total_bytes: Room on the whole file system.
        write_bytes_s: Speed of a write that has reached the disk, or the store.
        creates: Whether a create-only write is refused where something stands already.
        error: What it failed with.
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
    """Tries a store, and leaves neither a folder nor a bucket nor a file of its own.

    Raises:
        BadInputError: The address is none.
    """
    folder = store_folder(url)
    if folder is not None:
        return folder_facts(folder)
    return object_facts(url, options)


def store_folder(url: str) -> Path | None:
    """The folder that an address names; None where it names another kind of store.

    Raises:
        BadInputError: It cannot be read as an address.
    """
    folder = local_folder(url)
    return None if folder is None else folder.absolute()


def folder_facts(folder: Path) -> StoreFacts:
    """Tries the folder of a store, or the nearest folder above it that exists.

    Raises:
        BadInputError: It is a file.
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
    """The folder, or the nearest one above it that exists as far as this process may look."""
    place = folder
    while not os.path.exists(place):  # noqa: PTH110  Path.exists raises PermissionError before Python 3.14
        place = place.parent
    return place


def object_facts(url: str, options: S3Options) -> StoreFacts:
    """Puts, gets and deletes one small object, and tries whether a second create-only put of a key is refused.

    Raises:
        BadInputError: The address is none.
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
    """Writes a file without a name, which goes however this process ends; bytes per second with fsync."""
    chunk = secrets.token_bytes(_CHUNK_BYTES)
    written, started = 0, time.monotonic()
    with tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX, buffering=0) as stream:
        while written < min(_WRITE_BYTES, free_bytes // 2) and time.monotonic() - started < _WRITE_LIMIT_S:
            written += stream.write(chunk)
        os.fsync(stream.fileno())
    return written / (time.monotonic() - started)


def _makes_links(folder: Path) -> bool:
    """Whether the file system refuses a second hard link of a name: create-only writes are made so."""
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
