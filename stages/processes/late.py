"""A limit on the time in which another process answers, which also holds if it stops in the middle of its answer."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def killed_after(limit_s: float, kill: Callable[[], object]) -> Generator[threading.Event]:
    """Calls `kill` if the block takes longer than `limit_s` seconds, and yields the event that tells that it was."""
    late = threading.Event()
    watch = threading.Timer(limit_s, lambda: (late.set(), kill()))
    watch.daemon = True
    watch.start()
    try:
        yield late
    finally:
        watch.cancel()
