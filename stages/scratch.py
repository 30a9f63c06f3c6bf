"""Folders for working files among the machine's temporary ones, and the removal of those whose process was killed.

A folder's owner holds a lock on a file in it. The kernel lets go of the lock when the last process that inherited it
ends, however it ends, so a folder whose lock can be taken is nobody's any more. Folders of other users, of other
machines and of programs that left no such file are never touched.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "deerstalker-"
_PREFIXES = (PREFIX, "pymp-")  # the second are those of Python's multiprocessing
_OWNER = ".owner"
_KEPT = b"kept"
_KEPT_S = 7 * 24 * 3600.0
_LOGS = (".log", ".txt")


class Scratch:
    """A fresh folder that belongs to this process.

    Attributes:
        path: The folder; nobody but this user may look into it.
        lock: The descriptor of its lock. A child process that inherits it keeps the folder from being swept.
    """

    def __init__(self, prefix: str = PREFIX) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.lock = own(self.path)

    def remove(self) -> None:
        """Removes the folder; a second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._let_go()

    def remove_all_but_logs(self) -> None:
        """Removes everything that is no log; logs go when a sweep finds them a week old, or now if there are none."""
        logs = [
            path
            for path in _files(self.path)
            if path.suffix in _LOGS and path.lstat().st_size and not path.is_symlink()
        ]
        if not logs:
            self.remove()
            return
        for path in set(_files(self.path)).difference(logs, [self.path / _OWNER]):
            path.unlink(missing_ok=True)
        os.pwrite(self.lock, _KEPT, 0)
        os.ftruncate(self.lock, len(_KEPT))
        self._let_go()

    def leave(self) -> None:
        """Leaves the folder to the child processes that inherited the lock, the last of which removes it."""
        self._let_go()

    def _let_go(self) -> None:
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


@contextmanager
def scratch_folder() -> Generator[Path]:
    """A fresh folder that goes with the block."""
    scratch = Scratch()
    try:
        yield scratch.path
    finally:
        scratch.remove()


def own(folder: Path) -> int:
    """Makes a folder this process's own; returns the descriptor of its lock, which is held until it is closed.

    The file appears with its lock held, so that no sweep finds it without.
    """
    fresh = folder / f"{_OWNER}.new"
    lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):  # a file system without locks: then no sweep can take one either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, _machine())
        fresh.replace(folder / _OWNER)
    except BaseException:
        os.close(lock)
        raise
    return lock


def sweep() -> None:
    """Removes this user's folders whose owners were killed on this machine since it started; others stay."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIXES):
                continue
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid():
                    _remove_if_left(Path(entry.path))


def _remove_if_left(folder: Path) -> None:
    lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not _is_left(lock):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_left(lock):  # its owner let go of it between the two, and kept its logs
            return
        for path in folder.iterdir():
            if path.name == _OWNER:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        shutil.rmtree(folder)  # the lock's own file last: a sweep that is killed is finished by the next
    finally:
        os.close(lock)


def _is_left(lock: int) -> bool:
    told = os.pread(lock, 200, 0)
    if told == _KEPT:
        return time.time() - os.fstat(lock).st_mtime > _KEPT_S
    return told == _machine()


def _machine() -> bytes:
    """Names this machine since its last start: on a disk that several share, locks may hold on one of them only."""
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def _files(folder: Path) -> list[Path]:
    """Files below a folder, and links, which are not followed."""
    return [Path(top) / name for top, _, names in os.walk(folder) for name in names]
