"""Hashing of content, also while it is written to a file."""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from artifacts.store.keys import FileDigest, Progress

_WORTH_A_THREAD_BYTES = 1 << 20


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


def digest_of(chunks: Iterable[bytes], progress: Progress) -> FileDigest:
    """Returns the digest of all chunks together; `progress` is called with the size of each."""
    sha256, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        sha256.update(chunk)
        size_bytes += len(chunk)
        progress(len(chunk))
    return FileDigest(sha256.hexdigest(), size_bytes)
