"""A TCP proxy in front of one server; all connections share its speed, as those of a network card do."""

import socket
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.support.limited_store import Limit
from tests.support.serving import serving

_BLOCK_BYTES = 256 << 10


@contextmanager
def limited_proxy(upstream: str, bytes_per_s: float) -> Generator[str]:
    """Runs a proxy to a URL for the length of a with block, and yields the URL under which it is reached.

    Args:
        upstream: URL of the server, with its port.
        bytes_per_s: Bytes that pass in a second, in each direction.
    """
    target, limits = urlsplit(upstream), {"up": Limit(bytes_per_s), "down": Limit(bytes_per_s)}

    def pump(source: socket.socket, sink: socket.socket, limit: Limit) -> None:
        with suppress(OSError):  # the other direction has closed both
            while block := source.recv(_BLOCK_BYTES):
                limit.take(len(block))
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with socket.create_connection((target.hostname or "", target.port or 80)) as server:
                answers = threading.Thread(target=pump, args=(server, client, limits["down"]))
                answers.start()
                pump(client, server, limits["up"])
                answers.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, request_queue_size = True, 128

    with serving(server := Server(("127.0.0.1", 0), Handler)):
        yield f"http://127.0.0.1:{server.server_address[1]}"
