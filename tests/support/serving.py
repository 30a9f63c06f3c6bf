"""Servers of this process that end with the test, also if the test fails."""

import json
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

ServerT = TypeVar("ServerT", bound=socketserver.BaseServer)


@contextmanager
def serving(server: ServerT) -> Generator[ServerT]:
    """Serves requests in a thread, and closes the server at the end.

    A thread that outlived its socket would look for connections without a pause until the process ends.
    """
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    """Serves HTTP on a free port of 127.0.0.1 while the block runs, and yields the URL."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


class Replies(BaseHTTPRequestHandler):
    """The base of handlers that send whole replies. It prints nothing."""

    def body(self) -> bytes:
        """Reads the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, content: Any, status: int = 200, **headers: str) -> None:
        """Sends bytes as they are, and anything else as JSON; an underscore in a header's name is a hyphen."""
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers["Content_Type"] = "application/json"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass
