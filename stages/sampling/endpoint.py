"""The HTTP interface of one engine, over a Unix socket or a URL.

It uses http.client because a completion costs about 1 ms in all. For 2,000 requests over a Unix socket, 32 at a time,
a request costs 0.4 ms of CPU time here and 1.0 to 1.6 ms with httpx 0.28, whose `close()` also does not wake a thread
that waits for an answer.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from artifacts.local.input_files import LARGEST_ANSWER, check_size, read_at_most


class EndpointError(Exception):
    """The engine answered with an error status.

    Args:
        status: HTTP status.
        message: The body of the response, shortened.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        """Opens the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@dataclass(frozen=True)
class Endpoint:
    """The address and the key of an engine.

    Args:
        address: Path of a Unix socket, or an http(s) URL.
        api_key: Bearer key; empty for none. It is left out of the `repr` and masked in errors.
        key_name: Name of the environment variable that the key comes from, for errors.
    """

    address: Path | str
    api_key: str = field(default="", repr=False)
    key_name: str = ""

    def connect(self, timeout_s: float | None) -> http.client.HTTPConnection:
        """Returns a connection, which opens at its first request.

        Args:
            timeout_s: Longest wait for a single socket operation, seconds; None waits forever.
        """
        if isinstance(self.address, Path):
            return UnixConnection(self.address, timeout_s)
        url = urlsplit(self.address)
        connection_class = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        return connection_class(url.hostname or "", url.port, timeout=timeout_s)

    def exchange(self, connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> bytes:
        """Sends a request over a connection and returns the body of the response.

        Args:
            connection: A connection of this endpoint, which opens if it is closed. One that the server closes while it
                is idle breaks at its next request.
            method: HTTP method.
            path: Path, appended to that of the URL.
            body: Value to send as JSON; None for no body.

        Raises:
            EndpointError: The engine answered with a status of 400 or above.
            OSError, http.client.HTTPException: The engine could not be reached, the connection broke, or the response
                is larger than `LARGEST_ANSWER`.
        """
        prefix = "" if isinstance(self.address, Path) else urlsplit(self.address).path.rstrip("/")
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        content = None
        if body is not None:
            content = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, prefix + path, content, headers)
        answer = connection.getresponse()
        check_size(answer.length or 0, LARGEST_ANSWER)
        # `read` with a number of bytes does not notice a response that ends before its stated length.
        data = read_at_most(answer.read, LARGEST_ANSWER) if answer.length is None else answer.read()
        if answer.status >= 400:
            message = data.decode("utf-8", "replace")
            if self.api_key:
                message = message.replace(self.api_key, "***")  # some servers repeat refused headers in their response
            raise EndpointError(answer.status, message[:600])
        return data

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float) -> Any:
        """Sends a request over a new connection and returns the decoded JSON, or None for an empty response.

        Raises:
            EndpointError, OSError, http.client.HTTPException: As `exchange`; or the response is no JSON.
        """
        connection = self.connect(timeout_s)
        try:
            data = self.exchange(connection, method, path, body)
        finally:
            connection.close()
        try:
            return json.loads(data) if data else None
        except ValueError as error:
            raise http.client.HTTPException(f"a response that is no JSON: {data[:60]!r}") from error
