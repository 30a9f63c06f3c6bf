"""Access to stored files in folders and on S3, through the same few operations."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from artifacts.activity import doing
from artifacts.errors import SEE_DOCTOR, BadInputError, IntegrityError, StoreError
from artifacts.local.full_disk import disk_full, is_full_disk, is_quota
from artifacts.local.input_files import LARGEST_DOCUMENT, LARGEST_WEIGHTS
from artifacts.store.directory import DirectoryBackend
from artifacts.store.keys import (
    TEMPORARY_PREFIX,
    Backend,
    FileDigest,
    LeadsOutError,
    MissingKeyError,
    Progress,
    StartProgress,
    Stray,
    Unfinished,
    check_key,
    check_prefix,
    is_key,
    shown,
)
from artifacts.store.location import local_folder, split_address
from artifacts.store.s3 import S3Backend
from artifacts.store.s3_requests import S3Options
from artifacts.store.transfer import digest_of, write_hashed

__all__ = [
    "FileDigest",
    "LeadsOutError",
    "MissingKeyError",
    "Progress",
    "S3Options",
    "StartProgress",
    "Store",
    "Stray",
    "Unfinished",
]

BACKENDS: dict[str, Callable[[str, str, S3Options], Backend]] = {"s3": S3Backend}
"""Makes the backend of an address that names no folder from its bucket, prefix and options, by scheme."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Store:
    """Files under '/'-separated keys. A store may be used from several threads.

    Every operation raises StoreError if the store refuses it, and TransientError if the store cannot be reached for
    some time. MissingKeyError means that the store answered and has no such key.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @classmethod
    def open(cls, url: str, *, options: S3Options | None = None, writable: bool = True) -> "Store":
        """Opens the store at an address and checks that it can be used.

        Args:
            url: `s3://bucket/prefix`, `file:///folder`, or a plain path.
            options: Endpoint, credentials and limits for S3; by default those of the environment.
            writable: For a folder: whether to try a write. The first write makes an absent folder. With False the
                folder must exist.

        Raises:
            BadInputError: The address is empty, has an unknown scheme or credentials, or names something that is not a
                folder.
            StoreError: The bucket is missing (none is ever created), the folder cannot be written, the endpoint does
                not answer or the credentials are refused.
        """
        if (folder := local_folder(url)) is not None:
            return cls(DirectoryBackend(folder, writable=writable))
        parts = split_address(url)
        if parts.scheme not in BACKENDS:
            raise BadInputError(url, f"scheme {parts.scheme!r}", "file:// or s3://", _remedy(parts.scheme))
        if not parts.netloc:
            raise BadInputError(url, "no bucket", "s3://bucket/prefix", "name a bucket")
        prefix = check_prefix(parts.path.strip("/"))
        return cls(BACKENDS[parts.scheme](parts.netloc, prefix, options or S3Options()))

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return self._backend.url

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @doing("store")
    def read_bytes(self, key: str, most_bytes: int = LARGEST_DOCUMENT) -> bytes:
        """Returns the content under a key.

        Args:
            key: The key.
            most_bytes: Largest size of the content.

        Raises:
            MissingKeyError: There is none.
            IntegrityError: It is larger.
        """
        return self._backend.read(check_key(key), most_bytes)

    @doing("store")
    def write_bytes(self, key: str, data: bytes) -> None:
        """Stores content under a key and replaces earlier content atomically: readers see the old or the new."""
        self._backend.write(check_key(key), data)

    @doing("store")
    def create_bytes(self, key: str, data: bytes) -> bool:
        """Stores content under a key if the key has no content yet.

        Readers see no content or all of it. If an S3 server ignores the condition of a conditional put, the content is
        written and read again after a moment; if writers overlap, the last one wins.

        Args:
            key: The key.
            data: The content. It must be unique to this call, for example by a random name in it.

        Returns:
            Whether the key now holds this content.
        """
        return self._backend.create(check_key(key), data)

    @doing("store")
    def exists(self, key: str) -> bool:
        """Returns whether there is content under a key; raises an error if the store does not answer."""
        try:
            self._backend.size(check_key(key))
        except MissingKeyError:
            return False
        return True

    def size(self, key: str) -> int:
        """Returns the length of the content in bytes.

        Raises:
            MissingKeyError: There is none.
        """
        return self._backend.size(check_key(key))

    @doing("store")
    def list_with_strays(self, prefix: str = "") -> tuple[list[str], list[Stray]]:
        """Returns the keys as `list` does, and the entries that have no key: links, sockets, impossible names.

        Args:
            prefix: Whole segments of a key; empty for all keys.
        """
        prefix = check_prefix(prefix)
        found = self._backend.keys(prefix)
        # The empty objects by which consoles show a folder are none; that of the store itself has an empty key.
        named = [key for key in found if key and not is_key(key) and not key.endswith("/")]
        foreign = [Stray(shown(key), "a file whose name cannot be a key of a store") for key in named]
        return [key for key in found if is_key(key)], sorted([*self._backend.strays(prefix), *foreign])

    def unfinished(self, prefix: str = "") -> list[Unfinished]:
        """Returns the writes at and below a prefix that have not ended: multipart uploads and temporary files.

        Raises:
            StoreError: The server does not list uploads, or the credentials do not allow it.
        """
        return self._backend.unfinished(check_prefix(prefix))

    def remove_unfinished(self, write: Unfinished) -> None:
        """Removes the stored bytes of a write that was killed. A write that has ended meanwhile stays as it is."""
        self._backend.remove_unfinished(write)

    @doing("store")
    def folders(self, prefix: str) -> tuple[list[str], list[Stray]]:
        """Returns the names of the folders directly below a prefix, sorted, and the links and sockets beside them.

        It takes no longer if more is in the folders; `list` of S3 takes a request for each 1,000 keys.
        """
        return self._backend.folders(check_prefix(prefix))

    @doing("store")
    def list(self, prefix: str = "") -> list[str]:
        """Returns the full keys at and below a prefix, sorted, without strays and targets of symbolic links.

        Args:
            prefix: Whole segments of a key; empty for all keys.
        """
        return [key for key in self._backend.keys(check_prefix(prefix)) if is_key(key)]

    def walk(self, prefix: str = "") -> Iterator[str]:
        """Yields the full keys below a prefix, like `list` but in any order and each as soon as it is found.

        Args:
            prefix: Whole segments of a key; empty for all keys.
        """
        yield from (key for key in self._backend.walk(check_prefix(prefix)) if is_key(key))

    @doing("store")
    def delete(self, prefix: str) -> int:
        """Deletes a key and all keys below it, and returns their number.

        Raises:
            BadInputError: The prefix is empty.
        """
        keys = self._backend.keys(check_key(prefix.removesuffix("/")))
        self._backend.remove(keys)
        return len(keys)

    def local_path(self, key: str) -> Path | None:
        """Returns the path of a key or prefix in a directory store, which need not exist; None for other stores."""
        return self._backend.local_path(check_key(key))

    @doing("store")
    def digest(self, key: str, most_bytes: int = LARGEST_WEIGHTS) -> FileDigest:
        """Reads the content under a key and returns its digest.

        Args:
            key: The key.
            most_bytes: Size of the content. If there is more, only a part of the rest is read, and the digest, whose
                `size_bytes` is then larger, is that of what was read.

        Raises:
            MissingKeyError: There is none.
        """
        return digest_of(_up_to(self._backend.chunks(check_key(key)), most_bytes))

    def upload(self, local: Path, key: str, progress: Progress | None = None) -> FileDigest:
        """Stores a file and returns the digest of the bytes that were sent.

        Large files are sent to S3 in parallel parts, each with a checksum that the server verifies.

        Raises:
            BadInputError: There is no such local file.
        """
        if not local.is_file():
            raise BadInputError(str(local), "no such file", "a file to store")
        return self._backend.send(local, check_key(key), progress or _ignore)

    def download(self, key: str, local: Path, expect: FileDigest, progress: Progress | None = None) -> None:
        """Copies stored content to a file, which appears only when it is complete and has the expected digest.

        Raises:
            MissingKeyError: There is no content under the key.
            IntegrityError: The content does not have the expected digest.
        """
        check_key(key)
        temporary = local.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        try:
            local.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as stream:
                chunks = _up_to(self._backend.chunks(key), expect.size_bytes)
                digest = write_hashed(chunks, stream, progress or _ignore)
            if digest != expect:
                remedy = "the stored file was changed or damaged: make the artifact again or restore the file"
                raise IntegrityError(f"{key} in {self.url}", str(digest), str(expect), remedy)
            temporary.replace(local)
        except OSError as error:
            if is_full_disk(error):
                raise disk_full(local.parent, expect.size_bytes, key, quota=is_quota(error)) from error
            reason = f"cannot be written: {error.strerror}"
            raise StoreError(str(local), reason, "", f"check space and rights; {SEE_DOCTOR}") from error
        finally:
            with suppress(OSError):
                temporary.unlink()

    @doing("store")
    def upload_tree(self, local: Path, prefix: str, progress: Progress | None = None) -> dict[str, FileDigest]:
        """Stores every file of a folder, several at a time.

        Returns:
            The digest of each file by its path relative to the folder, '/'-separated and sorted.

        Raises:
            BadInputError: There is no such local folder.
        """
        if not local.is_dir():
            raise BadInputError(str(local), "no such folder", "a folder to store")
        files = sorted(path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file())
        keys = {name: check_key(f"{check_prefix(prefix)}/{name}".lstrip("/")) for name in files}
        digests = _in_parallel(self._backend, lambda name: self.upload(local / name, keys[name], progress), files)
        return dict(zip(files, digests, strict=True))

    @doing("store")
    def download_tree(
        self, prefix: str, local: Path, expect: Mapping[str, FileDigest], progress: Progress | None = None
    ) -> None:
        """Copies files into a folder, several at a time, and verifies each.

        Args:
            prefix: Folder of the files in the store.
            local: The folder.
            expect: Digest of each file by its path relative to the prefix.
            progress: Called with the number of bytes since the last call, from any thread.

        Raises:
            MissingKeyError: One of the files is missing.
            IntegrityError: One of the files does not have its expected digest.
        """
        keys = {check_key(name): check_key(f"{check_prefix(prefix)}/{name}".lstrip("/")) for name in expect}
        _in_parallel(self._backend, lambda name: self.download(keys[name], local / name, expect[name], progress), keys)

    def refuses_second_create(self) -> bool:
        """Returns whether the store refuses a second `create_bytes` of a key; an S3 server may ignore the condition."""
        return self._backend.refuses_second_create()

    def abandon(self) -> None:
        """Ends running transfers after their current part and refuses new requests, because the process is to end.

        Artifacts of these transfers are not published. Only transfers to and from S3 take long enough to need this.
        """
        self._backend.abandon()


def _up_to(chunks: Iterator[bytes], size_bytes: int) -> Iterator[bytes]:
    """Yields chunks until they exceed `size_bytes` bytes: the rest cannot change the result and may be endless."""
    for chunk in chunks:
        yield chunk
        size_bytes -= len(chunk)
        if size_bytes < 0:
            return


def _remedy(scheme: str) -> str:
    if scheme in ("gs", "gcs", "az", "abfs", "abfss", "adl", "wasb", "wasbs"):
        return "use s3:// with AWS_ENDPOINT_URL set to an S3 gateway of that cloud, or a folder where it is mounted"
    return "check the store's address"


def _in_parallel(backend: Backend, action: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    with ThreadPoolExecutor(backend.parallel_transfers, thread_name_prefix="store-files") as pool:
        try:
            return list(pool.map(action, items))
        except BaseException as error:
            if not isinstance(error, Exception):
                backend.abandon()  # after a signal, do not wait until whole files are transferred
            raise


def _ignore(moved_bytes: int) -> None:
    del moved_bytes
