"""Reports a full disk in one line: the folder, the free space, the needed space, and a remedy.

A write to a full disk fails in many ways: as an OSError, as an error of a library, as HTTP 500 of a server, or as the
end of a child process that could not write its log either. By the time of the report, the files of the failed process
may have been removed again. So `DiskWatch` also remembers how little was free a moment ago.
"""

import errno
import os
import re
import tempfile
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from artifacts.errors import BadInputError, DeerstalkerError, DiskFullError, TransientError, chain_of

_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_SAID = re.compile(
    r"No space left on device|Disk quota exceeded|database or disk is full|\bos error (?:28|122)\b"
    r"|unexpected pos \d+ vs \d+"  # torch's file writer, after a write that was cut short
)
_NEARLY_FULL_BYTES = 1 << 20
_CHILDREN = ("engine", "trainer")
"""Places of errors that describe the end of a child process, whose reason may be a guess."""
_REMEDY = (
    "free some space there (`deerstalker prune` lists artifacts that may be removed; TMPDIR moves temporary files), "
    "then the same command continues where it stopped"
)
_LOOK_EVERY_S = 0.1
_REMEMBERED_S = 30.0


def says_full_disk(text: str) -> bool:
    """Returns whether an error message or a log reports a write to a full disk."""
    return bool(_SAID.search(text))


def is_full_disk(error: BaseException) -> bool:
    """Returns whether an error, or an error that led to it, reports a write to a full disk."""
    return any(_reports(link) for link in chain_of(error))


def is_quota(error: BaseException) -> bool:
    """Returns whether a write failed because the quota of the user is used up."""
    return any(isinstance(link, OSError) and link.errno == errno.EDQUOT for link in chain_of(error))


def free_bytes(folder: Path) -> int:
    """Returns how many bytes this process may still write to the file system of a folder, which need not exist.

    Raises:
        OSError: The file system cannot be read.
    """
    status = os.statvfs(_existing(folder))
    if status.f_files and not status.f_ffree:
        return 0  # no file can be created, however many bytes are free
    blocks = status.f_bavail
    if (
        os.geteuid() == 0
    ):  # root may also use the blocks that are kept for root, but not those that ext4 keeps for itself
        blocks = max(blocks, status.f_bfree - min(status.f_blocks // 50, 4096))
    return blocks * status.f_frsize


def temporary_folder() -> Path:
    """Returns the folder that this process was given for temporary files, even if nothing can be written there.

    `tempfile.gettempdir` silently skips such a folder, but child processes still write to it.
    """
    return Path(os.environ.get("TMPDIR") or tempfile.gettempdir())


def nearly_full(folder: Path) -> bool:
    """Returns whether so little is free that a failure of a process is attributed to a lack of space."""
    return _refusal(folder) in _ERRNOS


def folder_of(error: BaseException) -> Path | None:
    """Returns the folder of the file that an error of the operating system about a full disk names, if it names one."""
    links = (link for link in chain_of(error) if isinstance(link, OSError) and link.errno in _ERRNOS)
    names = (link.filename2 or link.filename for link in links)  # the second one is the target of a copy
    return next((Path(name).absolute().parent for name in names if isinstance(name, str)), None)


def disk_full(
    folder: Path, needed_bytes: int | None = None, what: str = "", *, free: int | None = None, quota: bool = False
) -> DiskFullError:
    """Returns the error of a write to a full disk.

    Args:
        folder: Folder of the file; it need not exist.
        needed_bytes: Bytes that were to be written, if known.
        what: Their description, such as `weights`.
        free: Bytes that were free when the write failed; None for those that are free now.
        quota: Whether the quota of the user is used up, however much of the disk is free.
    """
    folder = _existing(folder)
    if free is None:
        with suppress(OSError):
            free = free_bytes(folder)
    found = "no space left" + ("" if free is None else f", {free / 2**20:.1f} MiB are free")
    if quota:
        found = "no space left: the user's quota is used up"
    room = f"room for {needed_bytes / 2**20:.1f} MiB" if needed_bytes is not None else "room for what is written there"
    return DiskFullError(
        str(folder),
        found,
        f"{room} of {what}" if what else room,
        _REMEDY,
    )


class DiskWatch:
    """Watches the free space of folders, and recognizes failures that a full disk caused.

    Inside its with block a thread looks about ten times a second.

    Args:
        folders: Folders to which this process and its child processes write; they need not exist.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(dict.fromkeys(folders))
        self._seen: list[tuple[float, dict[Path, int]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_often, name="disk-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def explaining(self) -> Generator[None]:
        """Replaces an error of the block by one that names the full folder, if a full disk caused it.

        Raises:
            DiskFullError: A disk is full.
        """
        try:
            yield
        except DiskFullError:
            raise
        except Exception as error:
            if full := self.full(error):
                raise full from error
            raise

    def full(self, error: BaseException) -> DiskFullError | None:
        """Returns the error that names the full folder if a full disk caused `error`; None if nothing indicates that.

        An error that mentions a full disk counts. Another error counts if the code that raised it may not know the
        reason (the end of a child process, the answer of a server, an unforeseen error) and almost no space is or was
        free.
        """
        for link in chain_of(error):
            if isinstance(link, DiskFullError):
                return link
        quota = is_quota(error)
        if named := folder_of(error):
            return disk_full(named, quota=quota)
        if not is_full_disk(error) and not _may_be_mistaken(error):
            return None
        for folder in self._folders:
            if (refusal := _refusal(folder)) in _ERRNOS:
                return disk_full(folder, quota=refusal == errno.EDQUOT)
        self.look()
        lowest = self._lowest()
        folder = min(lowest, key=lambda folder: lowest[folder], default=None)
        if folder is not None and (is_full_disk(error) or lowest[folder] < _NEARLY_FULL_BYTES):
            return disk_full(folder, free=lowest[folder], quota=quota)
        return None

    def look(self) -> None:
        """Notes how much is free now."""
        free: dict[Path, int] = {}
        for folder in self._folders:
            with suppress(OSError):
                free[folder] = free_bytes(folder)
        now = time.monotonic()
        self._seen = [*(seen for seen in self._seen if now - seen[0] < _REMEMBERED_S), (now, free)]

    def _lowest(self) -> dict[Path, int]:
        lowest: dict[Path, int] = {}
        for _, free in self._seen:
            for folder, size_bytes in free.items():
                lowest[folder] = min(size_bytes, lowest.get(folder, size_bytes))
        return lowest

    def _look_often(self) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            self.look()


def _refusal(folder: Path) -> int | None:
    """Returns the errno with which the disk refuses a small file; None if it takes the file.

    The number of free bytes is not enough: a quota may be used up, or the rest may be reserved for others.
    """
    try:
        with tempfile.TemporaryFile(dir=_existing(folder), prefix=".tmp-", buffering=0) as stream:
            os.posix_fallocate(stream.fileno(), 0, _NEARLY_FULL_BYTES)
    except OSError as error:
        return error.errno
    return None


def _existing(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if path.is_dir()), folder)


def _reports(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in _ERRNOS) or says_full_disk(str(error))


def _may_be_mistaken(error: BaseException) -> bool:
    """Returns whether a full disk may have caused an error that does not mention it."""
    if isinstance(error, BadInputError):
        return error.where in _CHILDREN
    return (
        isinstance(error, TransientError) or type(error) is DeerstalkerError or not isinstance(error, DeerstalkerError)
    )
