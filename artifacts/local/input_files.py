"""Reads external input: files that people or other programs wrote, stdin, and responses of servers.

A path may lead anywhere: /dev/zero never ends, a pipe waits for a writer, and a file may be replaced between a check
and its use. So each file is opened once and without waiting, the open file is checked, and at most a given size is
read.
"""

import errno
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from io import BufferedReader
from pathlib import Path

from artifacts.errors import BadInputError

LARGEST_SETTINGS = 1 << 20
"""Largest size of a recipe, a profile, a suite or a file of models: 1 MiB."""
LARGEST_DOCUMENT = 64 << 20
"""Largest size of a JSON document, a template, a text or a Python file: 64 MiB."""
LARGEST_TOKENIZER = 256 << 20
"""Largest size of `tokenizer.json`: 256 MiB. That of Gemma 3, with 262,144 tokens, has 33 MB."""
LARGEST_TABLE = 2 << 30
"""Largest size of a file of puzzles or questions, or of a shard, which is read into memory: 2 GiB."""
LARGEST_WEIGHTS = 1 << 40
"""Largest size of a file of weights: 1 TiB. The largest models are divided into files of 5 to 10 GB."""
LARGEST_ANSWER = 1 << 30
"""Largest size of an engine's response: 1 GiB."""
PLAIN_OR_GZIP = {"Accept-Encoding": "gzip"}
"""Header of a request whose response `check_coding` accepts."""

_STEP_BYTES = 1 << 20
_LEAST_STEP_BYTES = 1 << 16
"""For files below /proc, which state a size of 0. To make a much larger buffer takes longer than to fill it."""
_OPENING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


class UnfitInputError(OSError):
    """A file is not a regular file, or a file, a stream or a response is too large."""


def with_home(path: str) -> Path:
    """Returns a path whose `~` or `~user` is replaced by that home folder; unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def open_regular(path: Path | str, most_bytes: int, *, folder: int | None = None) -> BufferedReader:
    """Opens a regular file for reading.

    Args:
        path: The file; a symbolic link is followed.
        most_bytes: Its largest size.
        folder: Descriptor of the open folder in which a relative path begins. The last segment of the path may then not
            be a symbolic link.

    Raises:
        UnfitInputError: It is a device, a pipe or a socket, or is larger.
        OSError: It cannot be opened, or is a folder.
        ValueError: No file can have this name.
    """
    descriptor = os.open(path, _OPENING | (0 if folder is None else os.O_NOFOLLOW), dir_fd=folder)
    try:
        _check(os.fstat(descriptor), most_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(status: os.stat_result, most_bytes: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise UnfitInputError(errno.EINVAL, f"{_KINDS.get(stat.S_IFMT(status.st_mode), 'no file')}, not a regular file")
    check_size(status.st_size, most_bytes)


def check_size(size_bytes: int, most_bytes: int) -> None:
    """Raises UnfitInputError if `size_bytes`, the size that was announced or read so far, exceeds `most_bytes`."""
    if size_bytes > most_bytes:
        raise UnfitInputError(errno.EFBIG, f"{size_bytes:,} bytes or more, at most {most_bytes:,} are read")


def read_regular(path: Path | str, most_bytes: int = LARGEST_DOCUMENT, *, folder: int | None = None) -> bytes:
    """Returns the content of a regular file; arguments and errors are those of `open_regular`."""
    with open_regular(path, most_bytes, folder=folder) as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        return read_at_most(stream.read, most_bytes, max(size_bytes + 1, _LEAST_STEP_BYTES))


def read_at_most(read: Callable[[int], bytes], most_bytes: int, step_bytes: int = _STEP_BYTES) -> bytes:
    """Returns the whole content of a stream, such as stdin.

    Args:
        read: Returns at most as many bytes as it is asked for; none at the end.
        most_bytes: Largest number of bytes in all.
        step_bytes: Number of bytes for which `read` is asked at a time.

    Raises:
        UnfitInputError: The stream holds more.
    """
    return joined(iter(lambda: read(min(step_bytes, most_bytes + 1)), b""), most_bytes)


def check_coding(coding: str) -> None:
    """Checks the Content-Encoding of a response before it is read: one gzip enlarges a part at most a thousandfold.

    Raises:
        UnfitInputError: It is compressed twice or in another way, so that one part may fill the memory.
    """
    if coding.strip().lower() not in ("", "identity", "gzip"):
        raise UnfitInputError(errno.EINVAL, f"Content-Encoding {coding[:40]!r}, not gzip")


def joined(parts: Iterable[bytes], most_bytes: int, longest_s: float = math.inf) -> bytes:
    """Joins the parts of a content; stops reading parts when they have too many bytes or take too long.

    Raises:
        UnfitInputError: The parts have more than `most_bytes` bytes in all, or one arrives after `longest_s` seconds.
    """
    kept: list[bytes] = []
    total, end = 0, time.monotonic() + longest_s
    for part in parts:
        total += len(part)
        check_size(total, most_bytes)
        if time.monotonic() > end:
            raise UnfitInputError(errno.ETIMEDOUT, f"no end after {longest_s:g} s")
        kept.append(part)
    return kept[0] if len(kept) == 1 else b"".join(kept)


def answer_content(coding: str, parts: Iterable[bytes], most_bytes: int, longest_s: float) -> bytes:
    """Returns the content of an HTTP response: `joined` of its decoded parts, after `check_coding` of its header."""
    check_coding(coding)
    return joined(parts, most_bytes, longest_s)


def read_input(
    path: Path | str, expected: str, remedy: str = "", *, where: str = "", most_bytes: int = LARGEST_DOCUMENT
) -> bytes:
    """Returns the content of a file that a person named, or of a file of a folder that a person named.

    Args:
        path: The file.
        expected: Description of a valid file, for error messages.
        remedy: What to do if it cannot be read, for error messages.
        where: Its name in error messages; the path by default.
        most_bytes: Its largest size.

    Raises:
        BadInputError: There is no such file, it cannot be read, it is not a regular file, or it is too large.
    """
    try:
        return read_regular(path, most_bytes)
    except (OSError, ValueError) as error:
        raise BadInputError(where or str(path), reason(error), expected, remedy) from error


def open_input(path: Path, expected: str, remedy: str = "", *, most_bytes: int = LARGEST_DOCUMENT) -> BufferedReader:
    """Opens a file that a person named; arguments and errors are those of `read_input`."""
    try:
        return open_regular(path, most_bytes)
    except (OSError, ValueError) as error:
        raise BadInputError(str(path), reason(error), expected, remedy) from error


def check_input(path: Path, expected: str, remedy: str = "", *, most_bytes: int = LARGEST_DOCUMENT) -> None:
    """Checks a file for a library that opens it by its path; arguments and errors are those of `read_input`."""
    open_input(path, expected, remedy, most_bytes=most_bytes).close()


def copy_input(source: Path, target: Path, expected: str, *, most_bytes: int = LARGEST_DOCUMENT) -> None:
    """Copies a file without its mode; arguments and errors are those of `read_input`."""
    with open_input(source, expected, most_bytes=most_bytes) as stream:
        shutil.copyfile(f"/proc/self/fd/{stream.fileno()}", target)  # copies what is open, even if the path has changed


def reason(error: OSError | ValueError) -> str:
    """Returns why a file cannot be read, for error messages; a ValueError means a name that no file can have."""
    if not isinstance(error, OSError) or error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return "no such file"
    return f"cannot be read ({error.strerror})"
