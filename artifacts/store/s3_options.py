"""The options of an S3 store."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class S3Options:
    """How to reach an S3 endpoint. Options that are None come from the environment and AWS configuration files.

    Options are not pickled with a store, because they may hold credentials.

    Attributes:
        endpoint_url: For example `http://127.0.0.1:9000`.
        access_key, secret_key, session_token: Credentials.
        region: Name of the region.
        addressing: Place of the bucket in the URL; None for `path` unless the endpoint is AWS's own.
        connect_timeout_s: Longest time of opening a connection.
        read_timeout_s: Longest time without data from the endpoint.
        open_retry_for_s: Time after which no new attempt to open a store starts.
        retry_for_s: Time after which no new attempt of another operation starts.
        parallel_transfers: Number of parts and files in flight at a time.
        part_bytes: Size of a part of a large file, at least 5 MiB; each transfer in flight holds one part in memory.
        listing_page_keys: Number of keys in one page of a listing, at most 1,000.
    """

    endpoint_url: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    addressing: Literal["auto", "path", "virtual"] | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    open_retry_for_s: float = 2.0
    retry_for_s: float = 20.0
    parallel_transfers: int = 8
    part_bytes: int = 8 << 20
    listing_page_keys: int = 1000
