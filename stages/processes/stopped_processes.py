"""Detects processes that a signal has stopped.

A stopped process is alive but does not answer. A timeout long enough for real work would not notice it for minutes.
"""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress

import psutil

LOOK_INTERVAL_S = 1.0
STOPPED_LIMIT_S = 5.0


class StoppedProcessWatch:
    """Checks at most once a second whether one of some processes is stopped (by SIGSTOP or a debugger).

    Args:
        processes: Function that returns the process ids; called for each check.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._looked_at = float("-inf")
        self._since: float | None = None

    def stopped_for_long(self) -> bool:
        """Returns whether every check of the last `STOPPED_LIMIT_S` seconds saw a stopped process."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_INTERVAL_S:
            if now - self._looked_at > 4 * LOOK_INTERVAL_S:  # this process may have been stopped too: start over
                self._since = None
            self._looked_at = now
            if not any(_is_stopped(pid) for pid in self._processes()):
                self._since = None
            elif self._since is None:
                self._since = now
        return self._since is not None and now - self._since >= STOPPED_LIMIT_S

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Generator[None]:
        """Calls `end` once if a process has been stopped for `STOPPED_LIMIT_S` while the block runs."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_INTERVAL_S):
                if self.stopped_for_long():
                    end()
                    return

        thread = threading.Thread(target=look, name="stopped-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def session_processes(session: int) -> list[int]:
    """Returns the ids of the processes of a session."""
    return [pid for pid in psutil.pids() if _session_of(pid) == session]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended in the meantime
        return None


def _is_stopped(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False
