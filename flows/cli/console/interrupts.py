"""Ends a command that SIGINT (Ctrl-C) or SIGTERM interrupts, whatever it is waiting for.

The first signal raises an exception in the main thread, so that child processes and scratch folders are cleaned up.
Some code delays that exception: a C function that runs long, a lock of a library whose signal handler restarts system
calls (polars installs one), a thread pool that waits for its tasks, code that catches everything. So a thread watches
the signals, too, and ends the process after `LIMIT_S`. Nothing is lost: each file is stored completely or not at all,
the guards of `stages/processes/guard.py` end the children, and the next command removes scratch folders.
"""

import atexit
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143
LIMIT_S = 1.3
"""Seconds from a signal to the end of the process."""
_STATUS: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
_SAME = "the same command"
_LINES = {
    INTERRUPTED: f"interrupted; {_SAME} continues where it stopped",
    TERMINATED: f"terminated; {_SAME} continues where it stopped",
}
_NUDGE_INTERVAL_S = 0.05
_SHOW_CURSOR = "\x1b[?25h"


def continues_with(change: str) -> None:
    """Makes the line of an interruption say with which change the same command continues; by default with none."""
    for status, line in _LINES.items():
        _LINES[status] = line.replace(_SAME, f"{_SAME} {change}")


class Terminated(BaseException):
    """SIGTERM as an exception, so that child processes end before this one."""


def leave(status: int) -> NoReturn:
    """Runs the registered exit functions and ends the process.

    The normal exit of the interpreter takes a second after a run, because it frees every object and waits for threads.
    """
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] (there is no public name)
    with suppress(OSError):  # the reader, such as `head`, closed the pipe
        sys.stdout.flush()
    os._exit(status)


class Interrupts:
    """The signals of this process. Make one object at the start of a command, in the main thread.

    Args:
        limit_s: Seconds from the first signal to the end of the process.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._raises = True
        self._received: int | None = None
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._told = False
        self._main = threading.main_thread().ident
        self._wake_read: int | None = None

    def start(self) -> None:
        """Begins to raise `KeyboardInterrupt` and `Terminated`; call it where they are caught.

        The handlers come last, because the start of a thread waits for a lock, which a signal may interrupt.
        """
        wake_read, wake_write = os.pipe()
        self._wake_read = wake_read
        threading.Thread(target=self._watch, args=(wake_read,), name="signal-watch", daemon=True).start()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGURG, lambda number, frame: None)
        for number in _STATUS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and background jobs of shells ignore signals
                signal.signal(number, self._interrupt)

    def command_ended(self) -> None:
        """Stops raising exceptions, because the command has ended and this process ends in any case."""
        self._raises = False

    def tell(self, error: BaseException | None = None) -> int | None:
        """Prints the line that explains an interruption, unless it was printed before.

        Args:
            error: KeyboardInterrupt or `Terminated`, if one was caught; a library may raise KeyboardInterrupt, too.

        Returns:
            The exit status; None if there was no signal and no such error.
        """
        while self._unread():
            time.sleep(0.001)  # the watching thread is about to read a signal
        received = self._received
        if received is None and error is not None:
            received = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        if received is None:
            return None
        self._tell(_STATUS[received])
        return _STATUS[received]

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Raises the signal's exception; later signals raise none, so that they do not disturb the clean-up."""
        if self._raises:
            self._raises, self._received = False, number
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def _watch(self, wake_read: int) -> None:
        """Waits for a signal, makes the main thread notice it, and ends the process after the limit."""
        received = None
        while received is None:
            select.select([wake_read], [], [])
            with self._reading:
                received = next((number for number in os.read(wake_read, 64) if number in _STATUS), None)
                self._received = self._received or received  # a library, such as Prefect, may have replaced our handler
        status = _STATUS[received]
        deadline = time.monotonic() + self._limit_s
        while time.monotonic() < deadline:
            if self._raises and self._main is not None:
                # The handler of polars restarts a wait for a lock; that of SIGURG makes it return.
                signal.pthread_kill(self._main, signal.SIGURG)
            time.sleep(_NUDGE_INTERVAL_S)
        self._tell(status)
        os._exit(status)

    def _unread(self) -> bool:
        """Returns whether a signal has arrived that is not recorded yet."""
        with self._reading:
            watched = [] if self._wake_read is None else [self._wake_read]
            return self._received is None and bool(select.select(watched, [], [], 0)[0])

    def _tell(self, status: int) -> None:
        with self._lock:
            if not self._told:
                self._told = True
                cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
                print(f"{cursor}error: {_LINES[status]}\n", end="", file=sys.stderr, flush=True)
