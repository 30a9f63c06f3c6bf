"""Single requests to an S3 bucket through s3fs, with retries and with proof that an object is missing."""

import base64
import hashlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from artifacts.errors import BadInputError, StoreError, TransientError
from artifacts.store.keys import MissingKeyError, too_large
from artifacts.store.s3_faults import error_code, translate, with_retries

ResultT = TypeVar("ResultT")

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SERVER = "http:// or https:// and a host"
_HOST = re.compile(r"[A-Za-z0-9._:-]+")

_SILENCES_PER_CALL = 10
_BLOCK_BYTES = 1 << 18
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class S3Options:
    """How to reach an S3 endpoint. Options that are None come from the environment and AWS configuration files.

    Attributes:
        endpoint_url: For example `http://127.0.0.1:9000`.
        access_key, secret_key: Credentials.
        region: Name of the region.
        connect_timeout_s: Longest time to open a connection.
        read_timeout_s: Longest time without data from the endpoint.
        open_retry_for_s: Time after which no new attempt to open a store starts.
        retry_for_s: Time after which no attempt of any other operation starts.
        parallel_transfers: Number of parts and files in flight at a time.
        part_bytes: Size of a part of a large file, at least 5 MiB; each transfer in flight holds one part in memory.
        listing_page_keys: Number of keys in one page of a listing, at most 1,000.
    """

    endpoint_url: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    region: str | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    open_retry_for_s: float = 2.0
    retry_for_s: float = 20.0
    parallel_transfers: int = 8
    part_bytes: int = 8 << 20
    listing_page_keys: int = 1000


class S3Requests:
    """Requests below one prefix of one bucket. Each method makes one attempt, except `retried`.

    Args:
        bucket: Name of the bucket.
        prefix: Empty, or the beginning of every key, ending in a slash.
        options: Endpoint, credentials and limits.
    """

    def __init__(self, bucket: str, prefix: str, options: S3Options) -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.bucket, self.prefix, self.options = bucket, prefix, options
        self.abandoned = threading.Event()
        self._filesystem = _connect(options)

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return str(self._filesystem.s3.meta.endpoint_url)

    def retried(self, action: Callable[[], ResultT], key: str) -> ResultT:
        """Runs an action until it succeeds, fails permanently or has no time left (see `with_retries`).

        Raises:
            StoreError: Also if the store was abandoned.
        """

        def attempt() -> ResultT:
            if self.abandoned.is_set():
                raise StoreError(self.place(key), "given up", "", "the process that used the store is ending")
            return action()

        return with_retries(attempt, self.place(key), retry_for_s=self.options.retry_for_s, pause=self.abandoned.wait)

    def place(self, key: str) -> str:
        """Returns the name of a key of this store for error messages."""
        return f"{key} in {self.url}" if key else self.url

    def get(self, key: str, span: tuple[int, int] | None, most_bytes: int | None = None) -> tuple[list[bytes], int]:
        """Returns the existing bytes of the span [start, end), in blocks, and the length of the whole object.

        Without a span, returns the whole object.

        Raises:
            IntegrityError: The server announces more than `most_bytes` bytes, none of which is read.
        """
        arguments: dict[str, Any] = {"Range": f"bytes={span[0]}-{span[1] - 1}"} if span else {}
        try:
            answer, blocks = self.call(
                "get_object", read=_NO_LIMIT if most_bytes is None else most_bytes, Key=self.prefix + key, **arguments
            )
        except Exception as error:
            if error_code(error) in ("InvalidRange", "416") and span is not None and span[0] == 0:
                return self.get(key, None)
            self._raise_if_absent(error, key)
            raise
        announced, received = int(answer["ContentLength"]), sum(map(len, blocks))
        if received != announced:
            raise TransientError(self.place(key), f"{received} bytes received", f"{announced} bytes")
        content_range = answer.get("ContentRange")
        return blocks, int(content_range.rpartition("/")[2]) if content_range else received

    def head(self, key: str) -> dict[str, Any]:
        """Returns the description of an object."""
        try:
            return dict(self.call("head_object", Key=self.prefix + key))
        except Exception as error:
            self._raise_if_absent(error, key)
            raise

    def put(self, key: str, data: bytes, **arguments: Any) -> None:
        """Puts an object; the server checks the MD5 of the received bytes."""
        self.call("put_object", Key=self.prefix + key, Body=data, ContentMD5=content_md5(data), **arguments)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Puts an object on the condition that there is none and returns whether the server accepted it.

        A server may ignore the condition.
        """
        try:
            self.put(key, data, IfNoneMatch="*")
        except Exception as error:
            if error_code(error) in ("PreconditionFailed", "412"):
                return False
            raise
        return True

    def page(
        self, prefix: str, limit: int, token: str | None = None, delimiter: str = ""
    ) -> tuple[list[str], str | None]:
        """Returns up to `limit` keys that begin with `prefix`, and the token for the next page if there is one.

        With a delimiter, it returns the different beginnings of these keys up to the first delimiter after the prefix.
        """
        more: dict[str, Any] = {"ContinuationToken": token} if token else {}
        more |= {"Delimiter": delimiter} if delimiter else {}
        page = self.call("list_objects_v2", Prefix=self.prefix + prefix, MaxKeys=limit, **more)
        if page.get("Name") != self.bucket:
            raise StoreError(self.url, "a response that does not list it", "an S3 endpoint", "check its address")
        next_token = page.get("NextContinuationToken") if page.get("IsTruncated") else None
        if page.get("IsTruncated") and not next_token and limit > 1:
            raise StoreError(self.url, "an incomplete listing without a token for the rest", "", "check the endpoint")
        found, name = ("CommonPrefixes", "Prefix") if delimiter else ("Contents", "Key")
        return [str(entry[name])[len(self.prefix) :] for entry in page.get(found, [])], next_token

    def delete(self, keys: list[str]) -> None:
        """Deletes up to 1,000 objects; absent ones count as deleted."""
        objects = [{"Key": self.prefix + key} for key in keys]
        answer = self.call("delete_objects", Delete={"Objects": objects, "Quiet": True})
        for error in answer.get("Errors", []):
            if error.get("Code") == "NoSuchKey":
                continue
            problem = f"not deleted: {error.get('Code')}: {error.get('Message')}"
            kind = StoreError if error.get("Code") == "AccessDenied" else TransientError
            raise kind(self.place(str(error.get("Key"))), problem)

    def uploads(self, prefix: str, more: dict[str, Any]) -> tuple[list[tuple[str, str, float]], dict[str, Any]]:
        """Returns a page of the multipart uploads that have not ended, of keys that begin with `prefix`.

        Args:
            prefix: Beginning of the keys.
            more: Empty for the first page, or what the last page returned.

        Returns:
            Key, id of the upload, and its age in seconds by the server's clock, for each; and the arguments of the next
            page, empty after the last.
        """
        page = self.call("list_multipart_uploads", Prefix=self.prefix + prefix, **more)
        date = page["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise StoreError(self.url, "a response without a date", "an S3 endpoint", "check its address")
        now = parsedate_to_datetime(date)
        uploads = [
            (
                str(entry["Key"])[len(self.prefix) :],
                str(entry["UploadId"]),
                max(0.0, (now - entry["Initiated"]).total_seconds()),
            )
            for entry in page.get("Uploads", [])
            if str(entry["Key"]).startswith(self.prefix)
        ]
        if not page.get("IsTruncated"):
            return uploads, {}
        return uploads, {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def parts_after(self, key: str, upload: str, number: int) -> tuple[int, int | None]:
        """Returns the total size of a page of an upload's parts, and its last number if another page follows.

        Args:
            number: Last part number of the previous page; 0 for the first page.

        Raises:
            MissingKeyError: The upload has ended.
        """
        marker = {"PartNumberMarker": number} if number else {}
        page = self._of_upload("list_parts", key, upload, **marker)
        following = int(page["NextPartNumberMarker"]) if page.get("IsTruncated") else None
        return sum(int(part["Size"]) for part in page.get("Parts", [])), following

    def abort(self, key: str, upload: str) -> None:
        """Ends a multipart upload and removes its parts.

        Raises:
            MissingKeyError: The upload has ended.
        """
        self._of_upload("abort_multipart_upload", key, upload)

    def _of_upload(self, method: str, key: str, upload: str, **arguments: Any) -> Any:
        try:
            return self.call(method, Key=self.prefix + key, UploadId=upload, **arguments)
        except Exception as error:
            if error_code(error) == "NoSuchUpload":
                raise MissingKeyError(self.place(key), "no such upload") from error
            raise

    def call(self, method: str, *, read: int | None = None, **arguments: Any) -> Any:
        """Makes one request and returns the response.

        Args:
            method: Name of the operation in botocore.
            read: Largest size of its body. If given, the result is a pair: the response, and the body in blocks.
            **arguments: Arguments of the operation, without the bucket.

        Raises:
            Exception: Errors of s3fs, which `with_retries` translates.
            BadInputError: The configured endpoint is not the address of a server.
        """
        import fsspec.asyn

        filesystem = self._filesystem

        async def request() -> Any:
            answer: Any = await filesystem._call_s3(method, Bucket=self.bucket, **arguments)
            if read is None:
                return answer
            try:
                if (announced := int(answer["ContentLength"])) > read:
                    raise too_large(self.place(str(arguments["Key"])[len(self.prefix) :]), announced, read)
                # Joining megabytes would copy every byte once more, a quarter of the work of a download.
                return answer, [block async for block in answer["Body"].iter_chunks(_BLOCK_BYTES)]
            finally:
                answer["Body"].close()

        run: Callable[..., Any] = fsspec.asyn.sync
        try:
            return run(filesystem.loop, request, timeout=self.options.read_timeout_s * _SILENCES_PER_CALL)
        except ValueError as error:
            if not str(error).startswith("Invalid endpoint"):  # botocore has no error class of its own for it
                raise
            address = str(error).partition(": ")[2]
            shown = "not the address of a server" if "@" in address else ascii(address[:200])
            remedy = "correct AWS_ENDPOINT_URL, or endpoint_url of the AWS configuration files"
            raise BadInputError("address of the S3 server", shown, _SERVER, remedy) from error

    def _raise_if_absent(self, error: Exception, key: str) -> None:
        """Raises MissingKeyError if the server says that the key is missing, or a listing confirms a bare 404."""
        code = error_code(error)
        if code == "NoSuchKey":
            raise translate(error, self.place(key)) from error
        if code not in ("404", "NotFound"):
            return
        if self.page(key, 1)[0] == [key]:
            raise TransientError(self.place(key), "a 404 for a key that is listed") from error
        raise MissingKeyError(self.place(key), "no such key") from error


def content_md5(data: bytes) -> str:
    """Returns the value of a Content-MD5 header."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode("ascii")


def _endpoint(options: S3Options) -> str | None:
    """Returns the address of the S3 server from the options, or else from the environment; None for AWS itself.

    Raises:
        BadInputError: The address is not that of a server, or contains credentials.
    """
    named = {"endpoint_url": options.endpoint_url} | {name: os.environ.get(name) for name in _ENDPOINTS}
    name, address = next(((name, address) for name, address in named.items() if address), ("", None))
    if address is None:
        return None
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.hostname or "") and parts.port != 0
    except ValueError:  # a port that is not a number, half an IPv6 address
        parts, sound = None, False
    if "@" in address:  # the message does not show it
        raise BadInputError(name, "credentials in the address", _SERVER, "set AWS_ACCESS_KEY_ID and its secret instead")
    if parts is None or not sound or parts.query or parts.fragment:
        raise BadInputError(name, ascii(address[:200]), _SERVER, "correct it, or unset it for AWS itself")
    return address


def _connect(options: S3Options) -> Any:
    import s3fs

    endpoint = _endpoint(options)
    addressing = "path" if endpoint and "amazonaws.com" not in endpoint else "auto"
    filesystem: Any = s3fs.S3FileSystem(
        endpoint_url=endpoint,
        key=options.access_key,
        secret=options.secret_key,
        client_kwargs={"region_name": options.region} if options.region else {},
        config_kwargs={
            "connect_timeout": options.connect_timeout_s,
            "read_timeout": options.read_timeout_s,
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": 2 * options.parallel_transfers + 4,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            # The signed Content-MD5 covers the payload; signing its SHA-256 too would hash it twice.
            "s3": {"addressing_style": addressing, "payload_signing_enabled": False},
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    filesystem.retries = 1
    return filesystem
