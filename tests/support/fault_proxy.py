"""An HTTP proxy in front of one real server that spoils some answers on purpose."""

import http.client
import json
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from stages.sampling.endpoint import UnixConnection
from tests.support.serving import Replies, serving

FAULTS = ("slow_down", "internal_error", "reset", "lost_answer", "truncated", "duplicate")
"""Refused with 503 or 500, cut off before or after delivery, answered in part, delivered twice."""

SLOW_FAULTS = ("truncated_up", "late_duplicate", "delayed", "stalled")
"""Delivered in part, delivered again after later requests, kept for `delay_s`, and answered after `stall_s`."""

API_FAULTS = ("too_many", "internal_error", "truncated", "stalled", "broken_off")
"""Those of a provider of models: refused with 429 and Retry-After, or 500; cut; no answer; `finish_reason: "error"`."""

_HELD_BACK = 8
"""Largest number of waiting duplicates; if there are more, the next request first delivers the oldest."""

_EXPIRED = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>"


@dataclass
class FaultProxy:
    """A running proxy.

    Attributes:
        url: Its endpoint.
        choose: Called for each request with its method and path; returns a fault or None.
        injected: How often each fault was injected.
        delivered: The answers with status 200 that went to the client whole, each with its request's headers.
        delay_s, stall_s: How long the slow faults take. A stall should outlast the client's timeout.
    """

    url: str
    choose: Callable[[str, str], str | None]
    injected: Counter[str] = field(default_factory=Counter[str])
    delivered: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])
    delay_s: float = 0.2
    stall_s: float = 2.0


def at_random(share: float, seed: int, faults: Sequence[str] = FAULTS) -> Callable[[str, str], str | None]:
    """Returns a choice that spoils a share of the requests."""
    generator, lock = random.Random(seed), threading.Lock()

    def choose(method: str, path: str) -> str | None:
        with lock:
            return generator.choice(faults) if generator.random() < share else None

    return choose


def _connection(target: SplitResult | Path) -> http.client.HTTPConnection:
    if isinstance(target, Path):
        return UnixConnection(target, 60)
    return http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)


def _broken_off(answer: bytes) -> bytes:
    """Returns a completion as a router sends it after its provider failed midway."""
    body = json.loads(answer)
    choice = body["choices"][0]
    choice["finish_reason"], choice["message"]["content"] = "error", choice["message"]["content"][:1]
    return json.dumps(body).encode()


def _deliver(
    target: SplitResult | Path, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = _connection(target)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


@contextmanager
def fault_proxy(upstream: str | Path, choose: Callable[[str, str], str | None]) -> Generator[FaultProxy]:
    """Runs a proxy to `upstream`, a URL or a Unix socket, for the length of a with block."""
    target = urlsplit(upstream) if isinstance(upstream, str) else upstream
    proxy = FaultProxy("", choose)
    waiting: deque[tuple[str, str, bytes, dict[str, str]]] = deque()

    class Handler(Replies):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.body()
            fault = proxy.choose(self.command, self.path)
            if fault == "truncated_up" and len(body) < 2:
                fault = "reset"
            if fault:
                proxy.injected[fault] += 1
            while len(waiting) > _HELD_BACK:
                _deliver(target, *waiting.popleft())
            if fault == "slow_down":
                return self._answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            if fault == "internal_error":
                return self._answer(500, [], b"")
            if fault == "too_many":
                return self._answer(429, [("Retry-After", "0.1")], b'{"error": {"message": "too many requests"}}')
            if fault == "expired":
                return self._answer(400, [("Content-Type", "application/xml")], _EXPIRED * (self.command != "HEAD"))
            if fault == "not_found":
                return self._answer(404, [], b"")
            if fault == "truncated_up":
                self._forward_part(body)
            if fault in ("reset", "truncated_up"):
                self.close_connection = True
                return None
            if fault == "delayed":
                time.sleep(proxy.delay_s)
            request = (self.command, self.path, body, self._headers())
            status, headers, answer = _deliver(target, *request)
            if fault == "duplicate":
                status, headers, answer = _deliver(target, *request)
            if fault == "late_duplicate":
                waiting.append(request)
            if fault == "stalled":
                time.sleep(proxy.stall_s)
            if fault in ("lost_answer", "stalled"):
                self.close_connection = True
                return None
            if fault == "broken_off":
                answer = _broken_off(answer)
            self._answer(status, headers, answer, cut=fault == "truncated")
            if status == 200 and fault != "truncated":
                proxy.delivered.append((self._headers(), answer))
            return None

        def _headers(self) -> dict[str, str]:
            return {name: value for name, value in self.headers.items() if name.lower() != "expect"}

        def _forward_part(self, body: bytes) -> None:
            """Announces the whole body upstream, sends half of it and hangs up."""
            connection = _connection(target)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self._headers().items():
                    connection.putheader(name, value)
                connection.endheaders(body[: len(body) // 2])
            finally:
                connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            head = self.command == "HEAD" and status == 200
            announced = next((v for n, v in headers if n.lower() == "content-length"), "0") if head else str(len(body))
            self.send_header("Content-Length", announced)
            self.end_headers()
            if cut and body:
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024  # the requests of a client come at once, and are reset where there is no room

        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # faults make clients give up
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        yield proxy
