"""A server of this process that ends with the test, also if the test fails."""

import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

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
