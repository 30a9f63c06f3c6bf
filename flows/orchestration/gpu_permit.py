"""A run's turn on a GPU: a slot of Prefect's global concurrency limit, leased while engine or trainer may use it."""

import logging
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from types import TracebackType
from typing import Literal, Self

from flows.orchestration.gpu_lease import GpuLease

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


class GpuPermit:
    """Waits for a slot when a GPU is first needed, so that stages on the CPU and stages found published never wait.

    Args:
        limit: Name of the limit; None takes no slot. One that is missing is made, with one slot.
        spans: Give the slot back at the end of the run or of each stage.

    Attributes:
        users: End what uses the GPU, called before a slot is given back behind a stage.
    """

    def __init__(self, limit: str | None, spans: Literal["run", "stage"], log: Log) -> None:
        self.limit, self.spans, self._log = limit, spans, log
        self.users: list[Callable[[], None]] = []
        self._lease: GpuLease | None = None
        self._lock = Lock()
        self._closed = self.held = False

    def take(self) -> None:
        """Waits for a slot, unless one is held. The wait does not count against the time limit of a stage.

        Raises:
            DeerstalkerError: `close` was called before one was free.
        """
        if self.limit is None:
            return
        with _clock_stopped(), self._lock:
            if self.held:
                return
            self._lease = GpuLease(self.limit, self._log)
            if self._closed:
                self._lease.give_back()
            self._lease.take()
            self.held = True

    def stage_ended(self) -> None:
        """Ends what uses the GPU and gives the slot back, where it spans a stage."""
        if self.held and self.spans == "stage":
            for end in self.users:
                end()
            self._give_back()

    def close(self) -> None:
        """Gives the slot back for good, and makes those fail that wait for one in other threads."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        self.held = False
        if self._lease is not None:
            self._lease.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _clock_stopped() -> Generator[None]:
    """Stops the alarm by which Prefect limits a task's time; it goes on with what was left of it.

    Tasks in other threads have no limit (see `flows.orchestration.tasks`).
    """
    if current_thread() is not main_thread():
        yield
        return
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)


_open: dict[str | None, GpuPermit] = {}


@contextmanager
def gpu_permit(limit: str | None, spans: Literal["run", "stage"], log: Log) -> Generator[GpuPermit]:
    """The turn of this process: engines side by side in one flow run share it, for they would wait for one another."""
    if shared := _open.get(limit):
        yield shared
        return
    with GpuPermit(limit, spans, log) as turn:
        _open[limit] = turn
        try:
            yield turn
        finally:
            del _open[limit]
