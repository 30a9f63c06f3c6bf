"""A store in an S3 bucket, with create-only writes and parallel transfer of the parts of large files."""

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from artifacts.errors import SEE_DOCTOR, DeerstalkerError, IntegrityError, StoreError, TransientError
from artifacts.local.input_files import LARGEST_DOCUMENT
from artifacts.store.keys import FileDigest, MissingKeyError, Progress, Stray, Unfinished
from artifacts.store.s3_faults import error_code, with_retries
from artifacts.store.s3_requests import S3Options, S3Requests, content_md5

_MAX_PARTS = 10_000
_DELETE_BATCH = 1_000
_UPLOAD_ATTEMPTS = 3
_UPLOAD_MARK = "deerstalker-upload"
_SETTLE_FLOOR_S, _SETTLE_CEILING_S, _SETTLE_FACTOR = 1.0, 4.0, 4.0
_HONOURS_CONDITIONS: dict[tuple[str, str], bool] = {}


class _UploadGoneError(StoreError):
    """The server has forgotten a multipart upload, and the object is not the one that was uploaded."""


class S3Backend:
    """A store whose keys are objects below a prefix of an existing bucket. It never creates a bucket.

    Args:
        bucket: Name of the bucket.
        prefix: Empty, or the beginning of every key, without slashes at its ends.
        options: Endpoint, credentials and limits.

    Raises:
        StoreError: The endpoint does not answer as S3, the bucket is missing or the credentials are refused.
    """

    def __init__(self, bucket: str, prefix: str, options: S3Options) -> None:
        self._s3 = S3Requests(bucket, f"{prefix}/" if prefix else "", options)
        self.url = self._s3.url
        self.parallel_transfers = options.parallel_transfers
        self._options = options
        self._in_flight = threading.BoundedSemaphore(options.parallel_transfers)
        try:
            with_retries(lambda: self._s3.page("", 1), self.url, retry_for_s=options.open_retry_for_s, at_least=1)
        except TransientError as error:
            remedy = f"check AWS_ENDPOINT_URL, the network and that the server is up; {SEE_DOCTOR}"
            raise StoreError(self.url, error.found, "an S3 endpoint that answers", remedy) from error

    def read(self, key: str, most_bytes: int) -> bytes:
        return b"".join(self._s3.retried(lambda: self._s3.get(key, None, most_bytes)[0], key))

    def write(self, key: str, data: bytes) -> None:
        self._s3.retried(lambda: self._s3.put(key, data), key)

    def create(self, key: str, data: bytes) -> bool:
        if self.refuses_second_create():
            if self._s3.retried(lambda: self._s3.put_if_absent(key, data), key):
                return True
            return self._holds(key, data)  # True if the response to an earlier attempt of this put was lost
        took_s = self._s3.retried(lambda: self._put_if_missing(key, data), key)
        if took_s is None and not self._holds(key, data):
            return False
        time.sleep(min(_SETTLE_CEILING_S, max(_SETTLE_FLOOR_S, _SETTLE_FACTOR * (took_s or 0.0))))
        return self._holds(key, data)

    def _holds(self, key: str, data: bytes) -> bool:
        return self.read(key, max(len(data), LARGEST_DOCUMENT)) == data

    def size(self, key: str) -> int:
        return int(self._s3.retried(lambda: self._s3.head(key), key)["ContentLength"])

    def keys(self, prefix: str) -> list[str]:
        keys = list(self.walk(prefix))
        if prefix and not keys and self._s3.retried(lambda: self._s3.page(prefix, 1)[0], prefix) == [prefix]:
            return [prefix]
        return sorted(keys)

    def walk(self, prefix: str) -> Iterator[str]:
        return self._below(prefix)

    def folders(self, prefix: str) -> tuple[list[str], list[Stray]]:
        names = (key.removesuffix("/").rpartition("/")[2] for key in self._below(prefix, "/"))
        return sorted(filter(None, names)), []

    def _below(self, prefix: str, delimiter: str = "") -> Iterator[str]:
        """Yields the keys below a prefix; with a delimiter, their beginnings that end with the first one."""
        below = f"{prefix}/" if prefix else ""
        token: str | None = None
        while True:
            request = partial(self._s3.page, below, self._options.listing_page_keys, token, delimiter)
            page, token = self._s3.retried(request, prefix)
            yield from page
            if token is None:
                return

    def strays(self, prefix: str) -> list[Stray]:
        return []

    def remove(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _DELETE_BATCH):
            batch = keys[start : start + _DELETE_BATCH]
            self._s3.retried(lambda batch=batch: self._s3.delete(batch), batch[0])

    def unfinished(self, prefix: str) -> list[Unfinished]:
        writes: list[Unfinished] = []
        more: dict[str, Any] = {}
        while True:
            page, more = self._s3.retried(partial(self._s3.uploads, prefix, more), prefix)
            for key, upload, age_s in page:
                if not prefix or key == prefix or key.startswith(f"{prefix}/"):
                    with suppress(MissingKeyError):  # it has ended in the meantime
                        writes.append(Unfinished(key, upload, self._uploaded_bytes(key, upload), age_s))
            if not more:
                return sorted(writes, key=lambda write: (write.key, write.upload))

    def _uploaded_bytes(self, key: str, upload: str) -> int:
        total, after = 0, 0
        while True:
            size_bytes, following = self._s3.retried(partial(self._s3.parts_after, key, upload, after), key)
            total += size_bytes
            if following is None:
                return total
            after = following

    def remove_unfinished(self, write: Unfinished) -> None:
        with suppress(MissingKeyError):
            self._s3.retried(lambda: self._s3.abort(write.key, write.upload), write.key)

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest:
        size_bytes = local.stat().st_size
        if size_bytes <= self._options.part_bytes:
            data = local.read_bytes()
            self.write(key, data)
            progress(len(data))
            digest = FileDigest(hashlib.sha256(data).hexdigest(), len(data))
        else:
            digest = self._send_large(local, key, size_bytes, progress)
        stored_bytes = self.size(key)
        if stored_bytes != digest.size_bytes:
            problem = f"{stored_bytes} bytes after the upload"
            raise IntegrityError(self._s3.place(key), problem, f"{digest.size_bytes} bytes", "someone else wrote it")
        return digest

    def chunks(self, key: str) -> Iterator[bytes]:
        step = self._options.part_bytes
        blocks, total = self._s3.retried(lambda: self._s3.get(key, (0, step)), key)
        yield from blocks
        starts = deque(range(sum(map(len, blocks)), total, step))
        if not starts:
            return
        window: deque[Future[list[bytes]]] = deque()
        with ThreadPoolExecutor(self.parallel_transfers, thread_name_prefix="store-get") as pool:
            try:
                while starts or window:
                    # Wait for a permit only without parts in flight, else two readers could wait for each other.
                    while starts and self._in_flight.acquire(blocking=not window):
                        start = starts.popleft()
                        window.append(pool.submit(self._part, key, start, min(start + step, total), total))
                    future = window.popleft()
                    try:
                        blocks = future.result()
                    finally:
                        self._in_flight.release()
                    yield from blocks
            finally:
                for future in window:
                    future.cancel()
                    self._in_flight.release()

    def local_path(self, key: str) -> Path | None:
        return None

    def abandon(self) -> None:
        self._s3.abandoned.set()

    def _put_if_missing(self, key: str, data: bytes) -> float | None:
        """Puts an object if a request shows that there is none, for servers that ignore the condition of a put.

        Both requests are one attempt, because a repeated put without a new check would overwrite another writer.

        Returns:
            The seconds from the check to the end of the put; None if there was an object.
        """
        for last in (False, False, True):
            started = time.monotonic()
            try:
                self._s3.head(key)
            except MissingKeyError:
                if last or time.monotonic() - started < _SETTLE_FLOOR_S / 2:  # otherwise the check is too old
                    self._s3.put(key, data)
                    return time.monotonic() - started
            else:
                return None
        raise AssertionError("unreachable")

    def _part(self, key: str, start: int, end: int, total: int) -> list[bytes]:
        blocks, size_bytes = self._s3.retried(lambda: self._s3.get(key, (start, end)), key)
        received = sum(map(len, blocks))
        if size_bytes != total or received != end - start:
            problem = f"{received} bytes of {size_bytes} at {start}"
            remedy = "the object was changed while it was read"
            raise IntegrityError(self._s3.place(key), problem, f"{end - start} of {total}", remedy)
        return blocks

    def _send_large(self, local: Path, key: str, size_bytes: int, progress: Progress) -> FileDigest:
        for attempt in range(_UPLOAD_ATTEMPTS):
            try:
                return self._send_parts(local, key, size_bytes, progress)
            except _UploadGoneError:
                if attempt == _UPLOAD_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _send_parts(self, local: Path, key: str, size_bytes: int, progress: Progress) -> FileDigest:
        part_bytes = max(self._options.part_bytes, -(-size_bytes // _MAX_PARTS))
        mark = secrets.token_hex(16)
        start: dict[str, Any] = {"Key": self._s3.prefix + key, "Metadata": {_UPLOAD_MARK: mark}}
        upload: str = self._s3.retried(lambda: self._s3.call("create_multipart_upload", **start)["UploadId"], key)
        sha256, sent_bytes = hashlib.sha256(), 0
        futures: list[Future[dict[str, Any]]] = []
        try:
            with ThreadPoolExecutor(self.parallel_transfers, thread_name_prefix="store-put") as pool:
                with local.open("rb", buffering=0) as stream:
                    while data := stream.read(part_bytes):
                        self._in_flight.acquire()
                        if any(future.done() and future.exception() for future in futures):
                            self._in_flight.release()
                            break
                        futures.append(pool.submit(self._put_part, key, upload, len(futures) + 1, data, progress))
                        sha256.update(data)
                        sent_bytes += len(data)
                parts = [future.result() for future in futures]
            self._complete(key, upload, parts, mark)
        except _UploadGoneError:
            raise
        except BaseException:
            with suppress(DeerstalkerError):  # the first failure is reported
                self._abort(key, upload)
            raise
        return FileDigest(sha256.hexdigest(), sent_bytes)

    def _put_part(self, key: str, upload: str, number: int, data: bytes, progress: Progress) -> dict[str, Any]:
        try:
            arguments: dict[str, Any] = {"Key": self._s3.prefix + key, "UploadId": upload, "PartNumber": number}
            arguments |= {"Body": data, "ContentMD5": content_md5(data)}
            answer = self._s3.retried(lambda: self._s3.call("upload_part", **arguments), key)
        finally:
            self._in_flight.release()
        progress(len(data))
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _complete(self, key: str, upload: str, parts: list[dict[str, Any]], mark: str) -> None:
        parts_list = {"Parts": parts}
        arguments: dict[str, Any] = {"Key": self._s3.prefix + key, "UploadId": upload, "MultipartUpload": parts_list}

        def action() -> None:
            try:
                self._s3.call("complete_multipart_upload", **arguments)
            except Exception as error:
                if error_code(error) != "NoSuchUpload":
                    raise
                if not self._was_completed(key, mark):  # otherwise the response to an earlier attempt was lost
                    raise _UploadGoneError(self._s3.place(key), "the server forgot the upload") from error

        self._s3.retried(action, key)

    def _was_completed(self, key: str, mark: str) -> bool:
        try:
            metadata = self._s3.head(key).get("Metadata", {})
        except MissingKeyError:
            return False
        return {name.lower(): value for name, value in metadata.items()}.get(_UPLOAD_MARK) == mark

    def _abort(self, key: str, upload: str) -> None:
        with_retries(lambda: self._s3.abort(key, upload), self._s3.place(key), retry_for_s=1.0)

    def refuses_second_create(self) -> bool:
        """Returns whether the server refuses to create an object twice; it is tried once per endpoint and bucket."""
        place = (self._s3.endpoint, self._s3.bucket)
        if place not in _HONOURS_CONDITIONS:
            probe = f"probe-{secrets.token_hex(8)}"
            try:
                honoured = False
                for _ in range(2):
                    honoured = not self._s3.retried(lambda: self._s3.put_if_absent(probe, b"probe"), probe)
            except StoreError as error:
                if error.__cause__ is None or error_code(error.__cause__) not in ("NotImplemented", "501"):
                    raise
                honoured = False
            self.remove([probe])
            _HONOURS_CONDITIONS[place] = honoured
        return _HONOURS_CONDITIONS[place]
