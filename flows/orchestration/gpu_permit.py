"""A run's permit to use a GPU: a slot of a Prefect concurrency limit, leased while engine or trainer may run."""

import logging
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from typing import Literal, Self

from flows.orchestration.gpu_lease import GpuLease

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


class GpuPermit:
    """A slot that is taken when a GPU is first needed, so CPU stages and published stages never wait.

    Args:
        limit: Name of the limit; a missing limit is created with one slot. With None, no slot is needed.
        spans: Whether the slot is given back at the end of the run or of each stage.

    Attributes:
        enders: Functions that end the processes on the GPU; called before a slot is given back after a stage.
    """

    def __init__(self, limit: str | None, spans: Literal["run", "stage"], log: Log) -> None:
        self.limit, self.spans, self._log = limit, spans, log
        self.enders: list[Callable[[], None]] = []
        self._lease: GpuLease | None = None
        self._lock = Lock()
        self._closed = self.leased = False

    def take(self, *, waits: bool = True) -> bool:
        """Takes a slot unless this permit has one, and returns whether it has one or needs none.

        The wait does not count towards the time limit of a stage.

        Args:
            waits: Whether to wait until a slot is free.

        Raises:
            DeerstalkerError: `close` was called before a slot was free.
        """
        if self.limit is None:
            return True
        with _clock_stopped(), self._lock:
            if not self.leased:
                self._lease = GpuLease(self.limit, self._log)
                if self._closed:
                    self._lease.give_back()
                self.leased = self._lease.take(waits=waits)
            return self.leased

    def stage_ended(self) -> None:
        """Ends the processes on the GPU and gives the slot back, if slots span stages."""
        if self.leased and self.spans == "stage":
            for end in self.enders:
                end()
            self._give_back()

    def abandon(self) -> None:
        """Makes `take` fail in a thread that is waiting in it; a slot that is already taken stays."""
        if not self.leased:
            self.close()

    def close(self) -> None:
        """Gives the slot back. From now on `take` fails, even in a thread that is waiting in it."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        self.leased = False
        if self._lease is not None:
            self._lease.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def _clock_stopped() -> Generator[None]:
    """Pauses the alarm by which Prefect limits a task's time; it continues with the remaining time after the block.

    Tasks in other threads have no time limit (see `flows.orchestration.tasks`).
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
    """Yields the permit of this process for a limit.

    All callers in a process share it. With a permit for each caller, the engines of one flow run would wait for each
    other.
    """
    if shared := _open.get(limit):
        yield shared
        return
    with GpuPermit(limit, spans, log) as permit:
        _open[limit] = permit
        try:
            yield permit
        finally:
            del _open[limit]
