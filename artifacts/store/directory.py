"""A store in a folder. Writes are atomic by renaming and by hard links."""

import errno
import os
import secrets
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO

from artifacts.errors import SEE_DOCTOR, BadInputError, IntegrityError, StoreError, TransientError
from artifacts.local.full_disk import disk_full, is_full_disk, is_quota
from artifacts.local.input_files import LARGEST_WEIGHTS, UnfitInputError, open_regular, read_regular
from artifacts.store.keys import (
    TEMPORARY_PREFIX,
    FileDigest,
    LeadsOutError,
    MissingKeyError,
    Progress,
    Stray,
    Unfinished,
    shown,
)
from artifacts.store.transfer import write_hashed

CHUNK_BYTES = 4 << 20
_FOLDER_ATTEMPTS = 20
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class DirectoryBackend:
    """A store whose keys are paths below one folder.

    Readers never see half a file: content is written under a temporary name in the same folder, flushed to disk and
    then renamed (to replace a file) or hard-linked (to create one).

    The folder itself may be a symbolic link. Links below it are not followed: their targets are outside the store and
    are not read, listed, written or deleted.

    Args:
        root: The folder.
        writable: Whether to try a write. The first write makes an absent folder, so a refused command leaves no folder.
            With False the folder must exist.

    Raises:
        BadInputError: The path is not a folder, or it is missing and `writable` is False.
        StoreError: The folder cannot be written.
    """

    parallel_transfers = 4

    def __init__(self, root: Path, *, writable: bool) -> None:
        self._root = root.absolute()
        self.url = self._root.as_uri()
        self._never_existed = False
        with self._failures(self.url):
            self._never_existed = not self._root.exists()
            if self._root.exists() and not self._root.is_dir():
                raise BadInputError(self.url, "a file", "a folder", "name a folder for the store")
            if not writable:
                if not self._root.is_dir():
                    raise BadInputError(self.url, "no such folder", "an existing store", "check the store's address")
                return
            nearest = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
            with self._temporary(nearest / "probe"):
                pass

    def read(self, key: str, most_bytes: int) -> bytes:
        with self._failures(key, reading=True), self._folder_of(key) as (folder, name):
            return read_regular(name, most_bytes, folder=folder)

    def write(self, key: str, data: bytes) -> None:
        with self._failures(key, needed_bytes=len(data)):
            path = self._path(key)
            with self._temporary(path) as (temporary, stream):
                stream.write(data)
                _synchronise(stream)
                temporary.replace(path)
                synchronise_folder(path.parent)

    def create(self, key: str, data: bytes) -> bool:
        with self._failures(key, needed_bytes=len(data)):
            path = self._path(key)
            if path.is_file():
                return False
            with self._temporary(path) as (temporary, stream):
                stream.write(data)
                _synchronise(stream)
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    if path.is_dir():
                        raise
                    # On NFS, a repeated request finds the link that the first one made (link(2), BUGS).
                    if not path.samefile(temporary):
                        return False
                synchronise_folder(path.parent)
        return True

    def size(self, key: str) -> int:
        with self._failures(key, reading=True):
            status = self._path(key).stat()
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "a folder", key)
            return status.st_size

    def keys(self, prefix: str) -> list[str]:
        with self._failures(prefix or self.url):
            self._check_usable()
            if prefix and self._path(prefix).is_file():
                return [prefix]
            return sorted(self.walk(prefix))

    def walk(self, prefix: str) -> Iterator[str]:
        with self._failures(prefix or self.url):
            yield from (key for key, kind in _below(self._root, prefix) if kind is _Kind.FILE)

    def strays(self, prefix: str) -> list[Stray]:
        with self._failures(prefix or self.url):
            if prefix:
                self._path(prefix)
            files = (_Kind.FILE, _Kind.UNFINISHED)
            strays = [(key, kind) for key, kind in _below(self._root, prefix) if kind not in files]
            return [Stray(shown(key), self._described(key, kind)) for key, kind in strays]

    def folders(self, prefix: str) -> tuple[list[str], list[Stray]]:
        with self._failures(prefix or self.url):
            self._check_usable()
            if prefix:
                self._path(prefix)
            entries = list(_entries(self._root, prefix))
        names = sorted(key.rpartition("/")[2] for key, kind in entries if kind is _Kind.FOLDER)
        strays = [(key, kind) for key, kind in entries if kind in (_Kind.LINK, _Kind.OTHER)]
        return names, [Stray(shown(key), self._described(key, kind)) for key, kind in strays]

    def remove(self, keys: list[str]) -> None:
        folders: set[str] = set()
        for key in keys:
            folder, _, name = key.rpartition("/")
            with self._failures(key), suppress(FileNotFoundError, NotADirectoryError), self._opened(folder) as opened:
                os.unlink(name, dir_fd=opened)
            folders.update(str(parent) for parent in PurePosixPath(key).parents)
        for folder in sorted(folders - {"."}, key=lambda folder: -folder.count("/")):
            above, _, name = folder.rpartition("/")
            with suppress(OSError), self._opened(above) as opened:  # a folder that is not empty, or already removed
                os.rmdir(name, dir_fd=opened)

    def unfinished(self, prefix: str) -> list[Unfinished]:
        writes: list[Unfinished] = []
        with self._failures(prefix or self.url):
            for key in (key for key, kind in _below(self._root, prefix) if kind is _Kind.UNFINISHED):
                with suppress(FileNotFoundError):  # it has ended in the meantime
                    status = os.lstat(self._root / key)
                    writes.append(Unfinished(key, "", status.st_size, max(0.0, time.time() - status.st_mtime)))
        return sorted(writes, key=lambda write: write.key)

    def remove_unfinished(self, write: Unfinished) -> None:
        self.remove([write.key])

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest:
        with self._failures(key, needed_bytes=local.stat().st_size):
            path = self._path(key)
            with self._temporary(path) as (temporary, stream):
                with local.open("rb", buffering=0) as source:
                    digest = write_hashed(iter(lambda: source.read(CHUNK_BYTES), b""), stream, progress)
                _synchronise(stream)
                temporary.replace(path)
                synchronise_folder(path.parent)
            return digest

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._failures(key, reading=True):
            with self._folder_of(key) as (folder, name):
                stream = open_regular(name, LARGEST_WEIGHTS, folder=folder)
            with stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk

    def local_path(self, key: str) -> Path | None:
        with self._failures(key):
            return self._path(key)

    def refuses_second_create(self) -> bool:
        return True

    def abandon(self) -> None:
        """Does nothing: no transfer takes long."""

    def _usable(self) -> bool:
        """Returns whether the folder exists or has never existed. A folder that vanished is not made again."""
        never_existed = self._never_existed  # read first: another thread may make the folder after the look below
        if self._root.is_dir():
            self._never_existed = False
            return True
        return never_existed

    def _check_usable(self) -> None:
        if not self._usable():
            raise FileNotFoundError(errno.ENOENT, "the store's folder is gone")

    def _path(self, key: str) -> Path:
        """Returns the path of a key.

        Raises:
            LeadsOutError: The path contains a symbolic link.
            StoreError: The path contains something that is neither a file nor a folder. Opening a pipe would block.
        """
        path = str(self._root)
        for segment in key.split("/"):
            path = f"{path}/{segment}"
            try:
                mode = os.lstat(path).st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            if stat.S_ISLNK(mode):
                link = path[len(str(self._root)) + 1 :]
                raise LeadsOutError(
                    f"{key} in {self.url}", f"{link} is {self._described(link, _Kind.LINK)}", "no links in a store",
                    "replace the link by its target, or mount the target there",
                )  # fmt: skip
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise StoreError(f"{key} in {self.url}", _Kind.OTHER.value, "a file", "remove it")
        return self._root / key

    def _described(self, key: str, kind: "_Kind") -> str:
        if kind is not _Kind.LINK:
            return kind.value
        try:
            return f"{kind.value} to {shown(str((self._root / key).readlink()))}"
        except OSError:  # removed in the meantime
            return kind.value

    @contextmanager
    def _folder_of(self, key: str) -> Generator[tuple[int, str]]:
        """Opens the folder of a key, and yields its descriptor and the last segment of the key."""
        folder, _, name = key.rpartition("/")
        try:
            with self._opened(folder) as opened:
                yield opened, name
        except OSError:
            self._path(key)  # says so if a link or a pipe is on the path
            raise

    @contextmanager
    def _opened(self, folder: str) -> Generator[int]:
        """Opens a folder below the root without following links, even if another process replaces folders by links."""
        descriptor = os.open(self._root, os.O_PATH | os.O_DIRECTORY)
        try:
            for segment in folder.split("/") if folder else ():
                below = os.open(segment, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _temporary(self, path: Path) -> Generator[tuple[Path, IO[bytes]]]:
        """Yields a new open file in the folder of `path`, and removes it afterwards unless it was renamed."""
        temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        stream = self._created(temporary)
        try:
            with stream:
                yield temporary, stream
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()

    def _created(self, path: Path) -> IO[bytes]:
        for _ in range(_FOLDER_ATTEMPTS):  # the folder vanishes if another process removes the last file in it
            try:
                return path.open("xb")
            except FileNotFoundError:
                if not self._usable():
                    raise
                path.parent.mkdir(parents=True, exist_ok=True)
                self._never_existed = False
        raise FileNotFoundError(errno.ENOENT, "another process keeps removing its folder", str(path))

    @contextmanager
    def _failures(self, where: str, *, reading: bool = False, needed_bytes: int | None = None) -> Generator[None]:
        """Translates errors of the operating system. A missing file is a MissingKeyError only if the store exists."""
        place = where if where == self.url else f"{where} in {self.url}"
        try:
            yield
        except UnfitInputError as error:
            remedy = "it is damaged or foreign; restore it, or delete it and run again"
            raise IntegrityError(place, str(error.strerror), "a smaller regular file", remedy) from error
        except OSError as error:
            if reading and error.errno in _ABSENT and self._usable():
                raise MissingKeyError(place, "no such key") from error
            if is_full_disk(error):
                folder = self._root if where == self.url else (self._root / where).parent
                raise disk_full(folder, needed_bytes, where, quota=is_quota(error)) from error
            raise _translated(error, place) from error


def _translated(error: OSError, place: str) -> Exception:
    reason = f"{error.strerror or error} [{errno.errorcode.get(error.errno or 0, '?')}]"
    if error.errno in _NOT_ALLOWED:
        remedy = f"check owner, mode and mount options; {SEE_DOCTOR}"
        return StoreError(place, f"not writable or not readable: {reason}", "", remedy)
    if error.errno in (errno.EISDIR, errno.EEXIST, errno.ENOTDIR):
        return StoreError(place, reason, "a file", "a key cannot be both a file and the beginning of other keys")
    if error.errno in (errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE):
        return TransientError(place, reason)
    return StoreError(place, reason, "a folder that can be read and written", "check the path and its file system")


class _Kind(Enum):
    FILE = "a file"
    FOLDER = "a folder"
    UNFINISHED = "an unfinished file"
    LINK = "a symbolic link"
    OTHER = "neither a file nor a folder"


_OF_OTHERS = (".prefect", "lost+found")
"""Folders at the root that hold no artifacts: the server of another account, and what a file system keeps there."""


def _below(root: Path, prefix: str) -> Iterator[tuple[str, _Kind]]:
    """Yields the path from the root and the kind of each non-folder below a prefix."""
    for key, kind in _entries(root, prefix):
        if kind is _Kind.FOLDER:
            yield from _below(root, key)
        else:
            yield key, kind


def _entries(root: Path, prefix: str) -> Iterator[tuple[str, _Kind]]:
    """Yields the path from the root and the kind of each entry of a folder.

    Links are not followed. Of the folders in `_OF_OTHERS`, those that may not be read are left out.
    """
    try:
        entries = list(os.scandir(root / prefix))
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError:
        if prefix not in _OF_OTHERS:
            raise
        return
    for entry in entries:
        key = f"{prefix}/{entry.name}" if prefix else entry.name
        if entry.is_symlink():
            yield key, _Kind.LINK
        elif entry.is_dir(follow_symlinks=False):
            yield key, _Kind.FOLDER
        elif not entry.is_file(follow_symlinks=False):
            yield key, _Kind.OTHER
        else:
            yield key, _Kind.UNFINISHED if entry.name.startswith(TEMPORARY_PREFIX) else _Kind.FILE


def _synchronise(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def synchronise_folder(folder: Path) -> None:
    """Flushes the list of a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
