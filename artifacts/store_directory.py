"""A store in a folder: plain system calls, atomic by rename and by hard link."""

import errno
import os
import secrets
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from artifacts.errors import SEE_DOCTOR, BadInputError, StoreError, TransientError
from artifacts.store_keys import TEMPORARY_PREFIX, FileDigest, MissingKeyError, Progress
from artifacts.store_transfer import digest_of, write_hashed

CHUNK_BYTES = 4 << 20
_FOLDER_ATTEMPTS = 20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class DirectoryBackend:
    """Keys are paths below one folder.

    A reader never sees half a file: content is written under a temporary name beside its place, synchronised with the
    disk and then renamed (replace) or hard-linked (create-only).

    Args:
        root: The folder.
        writable: Create the folder if it is absent and try a write; otherwise the folder has to be there.

    Raises:
        BadInputError: If the path is no folder, or absent although it is only to be read.
        StoreError: If nothing can be written there.
    """

    parallel_transfers = 4

    def __init__(self, root: Path, *, writable: bool) -> None:
        self._root = root.absolute()
        self.url = self._root.as_uri()
        if self._root.exists() and not self._root.is_dir():
            raise BadInputError(self.url, "a file", "a folder", "name a folder for the store")
        if not writable:
            if not self._root.is_dir():
                raise BadInputError(self.url, "no such folder", "an existing store", "check the store's address")
            return
        with self._failures(self.url):
            self._root.mkdir(parents=True, exist_ok=True)
            with self._temporary(self._root / "probe"):
                pass

    def read(self, key: str) -> bytes:
        with self._failures(key, reading=True), (self._root / key).open("rb", buffering=0) as stream:
            return stream.readall()

    def write(self, key: str, data: bytes) -> None:
        path = self._root / key
        with self._failures(key), self._temporary(path) as (temporary, stream):
            stream.write(data)
            _synchronise(stream)
            temporary.replace(path)
            synchronise_folder(path.parent)

    def create(self, key: str, data: bytes) -> bool:
        path = self._root / key
        if path.is_file():
            return False
        with self._failures(key), self._temporary(path) as (temporary, stream):
            stream.write(data)
            _synchronise(stream)
            try:
                os.link(temporary, path)
            except FileExistsError:
                if path.is_dir():
                    raise
                return False
            synchronise_folder(path.parent)
        return True

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except MissingKeyError:
            return False
        return True

    def size(self, key: str) -> int:
        path = self._root / key
        with self._failures(key, reading=True):
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "a folder", str(path))
            return status.st_size

    def keys(self, prefix: str) -> list[str]:
        top = self._root / prefix
        with self._failures(prefix or self.url):
            if not self._root.is_dir():
                raise FileNotFoundError(errno.ENOENT, "the store's folder is gone")
            if top.is_file():
                return [prefix]
            return sorted(path[len(str(self._root)) + 1 :] for path in _files_below(str(top)))

    def remove(self, keys: list[str]) -> None:
        folders: set[Path] = set()
        for key in keys:
            path = self._root / key
            with self._failures(key), suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
            folders.update(parent for parent in path.parents if len(parent.parts) > len(self._root.parts))
        for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
            with suppress(OSError):  # not empty, or gone: either is fine
                folder.rmdir()

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest:
        path = self._root / key
        if path.exists() and path.samefile(local):  # written in place through local_path
            return digest_of(self.chunks(key), progress)
        with self._failures(key), self._temporary(path) as (temporary, stream):
            with local.open("rb", buffering=0) as source:
                digest = write_hashed(iter(lambda: source.read(CHUNK_BYTES), b""), stream, progress)
            _synchronise(stream)
            temporary.replace(path)
            synchronise_folder(path.parent)
        return digest

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._failures(key, reading=True), (self._root / key).open("rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def local_path(self, key: str) -> Path | None:
        return self._root / key

    def refuses_second_create(self) -> bool:
        return True

    def abandon(self) -> None:
        """Nothing here takes long."""

    @contextmanager
    def _temporary(self, path: Path) -> Generator[tuple[Path, IO[bytes]]]:
        """Opens a fresh file beside `path` and removes it afterwards unless it was renamed."""
        temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        stream = self._created(temporary)
        try:
            with stream:
                yield temporary, stream
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()

    def _created(self, path: Path) -> IO[bytes]:
        for _ in range(_FOLDER_ATTEMPTS):  # a folder can vanish again while someone else removes the last file in it
            try:
                return path.open("xb")
            except FileNotFoundError:
                if not self._root.is_dir():
                    raise
                path.parent.mkdir(parents=True, exist_ok=True)
        raise FileNotFoundError(errno.ENOENT, "its folder is removed again and again", str(path))

    @contextmanager
    def _failures(self, where: str, *, reading: bool = False) -> Generator[None]:
        """Turns an operating system's error into ours; absence only when reading, and if the store itself is there."""
        try:
            yield
        except OSError as error:
            place = where if where == self.url else f"{where} in {self.url}"
            if reading and error.errno in _ABSENT and self._root.is_dir():
                raise MissingKeyError(place, "no such key") from error
            raise _translated(error, place) from error


def _translated(error: OSError, place: str) -> Exception:
    reason = f"{error.strerror or error} [{errno.errorcode.get(error.errno or 0, '?')}]"
    if error.errno in _NO_SPACE:
        return StoreError(
            place, f"no space left: {reason}", "", f"free space or prune old runs, then retry; {SEE_DOCTOR}"
        )
    if error.errno in _NOT_ALLOWED:
        remedy = f"check owner, mode and mount options; {SEE_DOCTOR}"
        return StoreError(place, f"not writable or not readable: {reason}", "", remedy)
    if error.errno in (errno.EISDIR, errno.EEXIST, errno.ENOTDIR):
        return StoreError(place, reason, "a file", "a key cannot be both a file and the beginning of other keys")
    if error.errno in (errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE):
        return TransientError(place, reason)
    return StoreError(place, reason, "a folder that can be read and written", "check the path and its file system")


def _files_below(folder: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir():
            yield from _files_below(entry.path)
        elif not entry.name.startswith(TEMPORARY_PREFIX):
            yield entry.path


def _synchronise(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def synchronise_folder(folder: Path) -> None:
    """Has the disk know what a folder holds."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
