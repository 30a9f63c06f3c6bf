"""A limit of CPU time for a block of Python code, which costs no process and gives the same result on a busy machine.

A signal ends the block, so a single long operation of a C library ends only when it returns. Where that matters, call
the code in a process of `stages.processes.limited_calls`.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class CpuLimitError(BaseException):
    """The CPU time is used up. Not an `Exception`, because third-party code, such as SymPy, catches those."""


@contextmanager
def cpu_limit(limit_s: float) -> Generator[None]:
    """Raises `CpuLimitError` in the block once this process has used `limit_s` seconds of CPU time in it.

    Raises:
        RuntimeError: The calling thread is not the main thread of its process.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a limit of CPU time works by a signal: call this in the main thread of a process")

    def end(number: int, frame: FrameType | None) -> None:
        raise CpuLimitError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
