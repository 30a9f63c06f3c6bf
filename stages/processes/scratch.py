"""Temporary folders for working files, and the removal of folders whose process was killed.

The owner of a folder holds a lock on a file in it. The kernel releases the lock when the last process that inherited it
ends, however it ends. A folder whose lock can be taken therefore has no owner any more. Folders of other users, of
other machines and of programs that left no such file are never touched.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from artifacts.local.full_disk import disk_full, nearly_full, temporary_folder

PREFIX = "deerstalker-"
_PREFIXES = (PREFIX, "pymp-")  # the second prefix is that of Python's multiprocessing
_OWNER = ".owner"
_LOGS_KEPT = b"kept"
"""Content of the lock file in a folder that has only logs left."""
_LOGS_KEPT_S = 7 * 24 * 3600.0
_LOG_SUFFIXES = (".log", ".txt")
_LONGEST_SOCKET_PARENT = 107 - len("/deerstalker-12345678/") - 36
"""Length in bytes up to which a folder's sockets, which vLLM names by a UUID, have addresses that Linux accepts."""
_SHORT_FOLDERS = ("/tmp", "/var/tmp")


class Scratch:
    """A new folder that belongs to this process.

    Args:
        prefix: Beginning of its name.
        sockets: Whether sockets are made in it; then it is not made below a long TMPDIR.

    Raises:
        DiskFullError: TMPDIR is full, so that Python would silently use another folder.

    Attributes:
        path: The folder; only this user may read it.
        lock: Descriptor of its lock; -1 once it is released. `sweep` keeps the folder while a child process that
            inherited the lock runs.
    """

    def __init__(self, prefix: str = PREFIX, *, sockets: bool = False) -> None:
        if (named := temporary_folder()) != Path(tempfile.gettempdir()) and nearly_full(named):
            raise disk_full(named)
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=socket_parent() if sockets else None))
        try:
            self.lock = own(self.path)
        except BaseException:  # without an owner no sweep would remove it
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Removes the folder; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    def remove_all_but_logs(self) -> None:
        """Removes all files but logs, which a sweep removes after a week. Without logs the folder is removed now."""
        logs = [
            path
            for path in _files(self.path)
            if path.suffix in _LOG_SUFFIXES and path.lstat().st_size and not path.is_symlink()
        ]
        if not logs:
            self.remove()
            return
        for path in set(_files(self.path)).difference(logs, [self.path / _OWNER]):
            path.unlink(missing_ok=True)
        os.pwrite(self.lock, _LOGS_KEPT, 0)
        os.ftruncate(self.lock, len(_LOGS_KEPT))
        self.leave()

    def leave(self) -> None:
        """Releases the lock and leaves the folder as it is, for instance to a `GuardedProcess` that removes it."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


@contextmanager
def scratch_folder() -> Generator[Path]:
    """Yields a new folder, which is removed at the end of the block."""
    scratch = Scratch()
    try:
        yield scratch.path
    finally:
        scratch.remove()


def socket_parent() -> str:
    """Returns the folder for temporary files, or a shorter one if the addresses of sockets in it would be too long.

    Python's multiprocessing does so itself from 3.14 on.
    """
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) <= _LONGEST_SOCKET_PARENT:
        return parent
    return next((short for short in _SHORT_FOLDERS if os.access(short, os.W_OK)), parent)


def own(folder: Path) -> int:
    """Makes this process the owner of a folder and returns the descriptor of its lock. Closing it releases the lock.

    The lock's file appears only once it is locked, so that no sweep sees it unlocked.
    """
    new_file = folder / f"{_OWNER}.new"
    lock = os.open(new_file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):  # the file system has no locks; then no sweep can take one either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, _machine())
        new_file.replace(folder / _OWNER)
    except BaseException:
        os.close(lock)
        raise
    return lock


def has_owner(folder: Path) -> bool:
    """Returns whether a process of this machine owns a folder.

    Raises:
        OSError: The folder has no lock's file, or it cannot be opened.
    """
    lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.pread(lock, 200, 0) != _machine():
            return False
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def sweep() -> None:
    """Removes this user's temporary folders whose owners were killed, unless the machine has restarted since then.

    Folders in which only logs were kept are removed after a week.
    """
    for parent in {tempfile.gettempdir(), socket_parent()}:
        _sweep(parent)


def _sweep(parent: str) -> None:
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIXES):
                continue
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid():
                    _remove_unowned(Path(entry.path))


def _remove_unowned(folder: Path) -> None:
    """Removes a folder without an owner, unless it is to be kept.

    Raises:
        OSError: The folder has an owner or no lock's file, or cannot be removed.
    """
    lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not _is_removable(lock):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_removable(lock):  # between the two checks the owner released the lock and kept its logs
            return
        for path in folder.iterdir():
            if path.name == _OWNER:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.rmtree(folder)  # removes the lock's file last, so that the next sweep completes one that was killed
    finally:
        os.close(lock)


def _is_removable(lock: int) -> bool:
    content = os.pread(lock, 200, 0)
    if content == _LOGS_KEPT:
        return time.time() - os.fstat(lock).st_mtime > _LOGS_KEPT_S
    return content == _machine()


def _machine() -> bytes:
    """Returns the id of this machine's boot; on a shared disk, locks may hold on one machine only."""
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def _files(folder: Path) -> list[Path]:
    """Returns the files below a folder, and links without following them."""
    return [Path(top) / name for top, _, names in os.walk(folder) for name in names]
