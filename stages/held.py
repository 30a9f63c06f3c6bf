"""Processes that a signal holds: they are alive, answer nothing, and no time-out for honest work tells them apart."""

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from stages.processes import state_letter

LOOK_INTERVAL_S = 1.0
HELD_LIMIT_S = 5.0


class HeldWatch:
    """Looks whether one of some processes is stopped (SIGSTOP, a debugger), once a second at most.

    Args:
        processes: gives their ids at the time of a look.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._looked_at = float("-inf")
        self._since: float | None = None

    def held(self) -> bool:
        """Whether one has been for 5 s."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_INTERVAL_S:
            if now - self._looked_at > 4 * LOOK_INTERVAL_S:  # nobody looked, perhaps held itself: what was seen is old
                self._since = None
            self._looked_at = now
            if not any(state_letter(pid) in "Tt" for pid in self._processes()):
                self._since = None
            elif self._since is None:
                self._since = now
        return self._since is not None and now - self._since >= HELD_LIMIT_S

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Generator[None]:
        """Calls `end`, once, when one is held while the block waits for it."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_INTERVAL_S):
                if self.held():
                    end()
                    return

        thread = threading.Thread(target=look, name="held-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def of_session(session: int) -> list[int]:
    """Ids of the processes of a session."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(int(path.parent.name))
    return found
