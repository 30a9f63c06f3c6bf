"""The limit of requests in flight of one engine, from its counters."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

SHRINK = 0.75


@dataclass
class Window:
    """Admits requests up to a limit, which shrinks when the engine preempts and grows while it has room.

    At a preemption the KV cache is full, and the engine discards finished work to do it again later.

    Args:
        limit: Initial and largest number of requests.
    """

    limit: int
    largest_limit: int = field(init=False)
    active: int = 0
    closed: bool = False
    preemptions: float | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.largest_limit = self.limit

    def enter(self) -> bool:
        """Waits until a request may be sent and returns True, or False if the window is closed."""
        with self._changed:
            while self.active >= self.limit and not self.closed:
                self._changed.wait()
            if not self.closed:
                self.active += 1
            return not self.closed

    def leave(self) -> None:
        """Ends a request that `enter` admitted."""
        with self._changed:
            self.active -= 1
            self._changed.notify()

    def close(self) -> None:
        """Admits no more requests and wakes all threads that wait in `enter`."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def observe(self, preemptions: float, waiting: float, kv_cache_use: float) -> None:
        """Adjusts the limit by the engine's counters.

        Args:
            preemptions: Number of preemptions since the engine's start. Those of the first observation are not new.
            waiting: Number of sequences that the engine has not begun.
            kv_cache_use: Share of the KV cache in use, 0 to 1.
        """
        with self._changed:
            if self.preemptions is not None and preemptions > self.preemptions:
                self.limit = max(1, int(min(self.limit, self.active) * SHRINK))
            elif waiting == 0 and kv_cache_use < SHRINK and self.limit < self.largest_limit:
                self.limit += 1
                self._changed.notify()
            self.preemptions = preemptions
