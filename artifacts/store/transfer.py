"""Hashes content, by itself or while it is written to a file."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from artifacts.local.input_files import LARGEST_WEIGHTS, open_regular
from artifacts.store.keys import FileDigest, Progress

_WORTH_A_THREAD_BYTES = 1 << 20
_MOST_FILES_AT_A_TIME = 32


def write_hashed(chunks: Iterable[bytes], stream: IO[bytes], progress: Progress) -> FileDigest:
    """Writes chunks to a stream in order and returns the digest of all bytes that were written.

    A large chunk is hashed while another thread writes it.

    Args:
        chunks: The content.
        stream: The file.
        progress: Called with the size of each chunk in bytes.
    """
    sha256, size_bytes = hashlib.sha256(), 0
    with ThreadPoolExecutor(1, thread_name_prefix="store-write") as writer:
        for chunk in chunks:
            if len(chunk) < _WORTH_A_THREAD_BYTES:
                stream.write(chunk)
                sha256.update(chunk)
            else:
                written = writer.submit(stream.write, chunk)
                sha256.update(chunk)
                written.result()
            size_bytes += len(chunk)
            progress(len(chunk))
    return FileDigest(sha256.hexdigest(), size_bytes)


def digest_of(chunks: Iterable[bytes]) -> FileDigest:
    """Returns the digest of all chunks together."""
    sha256, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        sha256.update(chunk)
        size_bytes += len(chunk)
    return FileDigest(sha256.hexdigest(), size_bytes)


def digests_of_files(paths: Sequence[Path], *, flush: bool = False) -> list[FileDigest]:
    """Returns the digests of files; each available core hashes a file at a time.

    Args:
        paths: The files.
        flush: Whether to flush the files to disk as well, while they are hashed.

    Raises:
        OSError: A file cannot be read or flushed.
    """
    threads = max(1, min(len(os.sched_getaffinity(0)), len(paths), _MOST_FILES_AT_A_TIME))
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="hash-files") as hashing,
        ThreadPoolExecutor(threads, thread_name_prefix="flush-files") as flushing,
    ):
        digests = hashing.map(_digest_of_file, paths)
        if flush:
            list(flushing.map(_flush, paths))
        return list(digests)


def _digest_of_file(path: Path) -> FileDigest:
    with open_regular(path, LARGEST_WEIGHTS) as stream:
        return FileDigest(hashlib.file_digest(stream, "sha256").hexdigest(), stream.tell())


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
