"""How many requests are in flight at one engine, following what the engine says of itself."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

SHRINK = 0.75


@dataclass
class Window:
    """Admits requests up to a limit that shrinks when the engine preempts and grows while it has room.

    A preemption means that the KV cache ran out and finished work was thrown away to be done again.

    Args:
        limit: Requests at first, and at most.
    """

    limit: int
    most: int = field(init=False)
    active: int = 0
    closed: bool = False
    preemptions: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.most = self.limit

    def enter(self) -> bool:
        """Wait for a place; false when the window was closed meanwhile."""
        with self._changed:
            while self.active >= self.limit and not self.closed:
                self._changed.wait()
            if not self.closed:
                self.active += 1
            return not self.closed

    def leave(self) -> None:
        """Give a place back."""
        with self._changed:
            self.active -= 1
            self._changed.notify()

    def close(self) -> None:
        """Wake everybody who waits for a place."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def observe(self, preemptions: float, waiting: float, kv_cache_use: float) -> None:
        """Set the limit by the engine's counters.

        Args:
            preemptions: Preemptions since the engine's start.
            waiting: Sequences the engine has not begun.
            kv_cache_use: Share of the KV cache in use, 0 to 1.
        """
        with self._changed:
            if preemptions > self.preemptions:
                self.limit = max(1, int(min(self.limit, self.active) * SHRINK))
            elif waiting == 0 and kv_cache_use < SHRINK and self.limit < self.most:
                self.limit += 1
                self._changed.notify()
            self.preemptions = preemptions


@dataclass
class Pulse:
    """When an engine last made progress."""

    last: tuple[float, ...] = ()
    moved_s: float = field(default_factory=time.monotonic)

    def beat(self, counters: tuple[float, ...]) -> None:
        """Take note of counters; any change is progress."""
        if counters != self.last:
            self.last, self.moved_s = counters, time.monotonic()

    def rest(self) -> None:
        """Take note that there is nothing to be done."""
        self.moved_s = time.monotonic()

    @property
    def still_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.moved_s
