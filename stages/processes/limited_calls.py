"""Calls of code that may do anything, each in a process with limits on time and memory.

A call that loops, crashes, exits or takes too much memory fails with a reason. Its process is replaced, and other calls
continue. Pebble's `ProcessPool` (5.2.3) does not fit: its processes share one pipe, so one that dies while it sends
breaks the answers of the others, and its limit counts wall-clock time, so harmless calls fail on a busy machine.
"""

import importlib
import os
import pickle
import resource
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from artifacts.errors import DeerstalkerError
from stages.processes.awake import AwakeClock
from stages.processes.cgroups import usable_cores
from stages.processes.late import killed_after
from stages.processes.process_pool import end_with_parent, exit_code, start_worker

_WALL_FACTOR = 10
"""Largest wall-clock time of a call as a multiple of its limit, because it may wait for a core."""
_GRACE_S = 5.0
"""Seconds after that limit until the kernel ends a process that its owner has not ended."""
_LONGEST_REASON = 300


@dataclass(frozen=True)
class CallResult:
    """The result of one call.

    Attributes:
        value: The returned value; None if the call failed.
        failure: Why it failed: `timeout`, `out of memory`, `crashed: exit code 3`, `crashed: SIGSEGV`, `raised
            ValueError: ...`, or a value that cannot be sent; None if it returned.
    """

    value: Any
    failure: str | None = None


class LoadError(DeerstalkerError):
    """The function could not be loaded in its process."""


class LimitedCalls:
    """Processes that call one function. They start when they are needed and end with this object or this process.

    Args:
        load: `module:function` whose result is the function to call. It runs once in each process, before the limits.
        *arguments: Picklable arguments of `load`.
        limit_s: CPU seconds that a call may take; it may take ten times as many wall-clock seconds.
        memory_bytes: Memory that a process may allocate beyond what it has after loading.
        workers: Number of processes; None for one per core that this process may use.
        load_s: Wall-clock seconds within which a process must be ready.
    """

    def __init__(
        self,
        load: str,
        *arguments: Any,
        limit_s: float,
        memory_bytes: int = 2 << 30,
        workers: int | None = None,
        load_s: float = 120.0,
    ) -> None:
        self._start = (load, arguments, memory_bytes, limit_s * _WALL_FACTOR + _GRACE_S)
        self._limit_s, self._load_s = limit_s, load_s
        self._workers = workers or usable_cores()
        self._idle: list[_Worker] = []
        self._started: set[_Worker] = set()
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _kill_all, self._started)

    def map(self, calls: Sequence[tuple[Any, ...]]) -> list[CallResult]:
        """Calls the function with each tuple of arguments, several at a time, and returns the outcomes in order.

        Raises:
            LoadError: The function could not be loaded.
        """
        if len(calls) <= 1 or self._workers == 1:
            return [self.call(*arguments) for arguments in calls]

        def outcome(arguments: tuple[Any, ...]) -> CallResult:
            return self.call(*arguments)

        with ThreadPoolExecutor(min(self._workers, len(calls)), "limited-calls") as threads:
            return list(threads.map(outcome, calls))

    def call(self, *arguments: Any) -> CallResult:
        """Calls the function once.

        If the process is lost in the call and has served earlier calls, the call is repeated in a fresh process: the
        earlier calls may have left little memory, or something may have killed the process while it was idle. So is a
        call that the kernel ended because this machine slept. A call that timed out is not repeated.

        Raises:
            LoadError: The function could not be loaded.
        """
        while True:
            worker = self._take()
            used = worker.calls > 0
            outcome, alive = worker.call(arguments, self._limit_s)
            if not alive:
                self._drop(worker)
                if outcome.failure == _SLEPT or (used and outcome.failure != _TIMEOUT):
                    continue
            else:
                with self._lock:
                    self._idle.append(worker)
            return outcome

    def close(self) -> None:
        """Ends the processes; the next call starts new ones."""
        with self._lock:
            started = list(self._started)
            self._idle.clear()
            self._started.clear()
        for worker in started:
            worker.kill()

    def _take(self) -> "_Worker":
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker(*self._start)
        with self._lock:
            self._started.add(worker)
        if (reason := worker.ready(self._load_s)) is not None:
            self._drop(worker)
            raise LoadError(self._start[0], reason, "a function that can be loaded")
        return worker

    def _drop(self, worker: "_Worker") -> None:
        worker.kill()
        with self._lock:
            self._started.discard(worker)


_OUT_OF_MEMORY = "out of memory"
_OUT_OF_MEMORY_ANSWER = pickle.dumps(CallResult(None, _OUT_OF_MEMORY))
_TIMEOUT = "timeout"
_SLEPT = "lost while the machine slept"
_LONGEST_WAIT_S = 1.0


def _kill_all(workers: "set[_Worker]") -> None:
    for worker in list(workers):
        worker.kill()


class _Worker:
    """A process that makes one call at a time."""

    def __init__(self, load: str, arguments: tuple[Any, ...], memory_bytes: int, longest_s: float) -> None:
        self._process, self._pipe = start_worker(_serve, load, arguments, memory_bytes, longest_s)
        self.calls = 0

    def ready(self, load_s: float) -> str | None:
        """Waits until the function is loaded; returns the reason if it cannot be."""
        try:
            if not self._pipe.poll(load_s):
                return f"not loaded within {load_s:.0f} s"
            return pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return self._end()

    def call(self, arguments: tuple[Any, ...], limit_s: float) -> tuple[CallResult, bool]:
        """Returns the outcome of a call, and whether the process can make another one."""
        self.calls += 1
        clock, late = AwakeClock(), None
        try:
            used_s = _cpu_s(self._process.pid)
            self._pipe.send(arguments)
            if not self._answered(used_s, limit_s, clock):
                return CallResult(None, _TIMEOUT), False
            with killed_after(limit_s * _WALL_FACTOR, self._process.kill) as late:
                answer = self._pipe.recv_bytes()
        except (EOFError, OSError, psutil.NoSuchProcess):
            if late and late.is_set():
                return CallResult(None, _TIMEOUT), False
            clock.look()
            return CallResult(None, _SLEPT if clock.asleep_s else self._end()), False
        try:
            outcome: CallResult = pickle.loads(answer)
        except Exception as error:
            return CallResult(None, f"returned a value that cannot be read: {_words(error)}"), True
        return outcome, outcome.failure != _OUT_OF_MEMORY

    def kill(self) -> None:
        """Ends the process and those that it started."""
        pid = self._process.pid
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _answered(self, used_s: float, limit_s: float, clock: AwakeClock) -> bool:
        """Waits for an answer until the call has used its CPU time, or ten times as much wall-clock time."""
        wait_s = limit_s
        while not self._pipe.poll(min(wait_s, _LONGEST_WAIT_S)):
            left_s = limit_s - (_cpu_s(self._process.pid) - used_s)
            if left_s <= 0 or clock.look() >= limit_s * _WALL_FACTOR:
                return False
            wait_s = max(left_s, 0.02)
        return True

    def _end(self) -> str:
        """Returns how the process ended."""
        code = exit_code(self._process, 30.0)
        if code is None:
            return "crashed: it closed its pipe"
        if code >= 0:
            return f"crashed: exit code {code}"
        return f"crashed: {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"


def _cpu_s(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _words(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException:
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}"[:_LONGEST_REASON].removesuffix(": ")


def _serve(pipe: Connection, load: str, arguments: tuple[Any, ...], memory_bytes: int, longest_s: float) -> None:
    os.setsid()  # a group of its own, so that the processes that the function starts are killed with it
    end_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # stdout may be a JSON document of the command
    try:
        module, _, name = load.partition(":")
        function = getattr(importlib.import_module(module), name)(*arguments)
        allowed = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(_words(error)))
        return
    pipe.send_bytes(pickle.dumps(None))
    while True:
        try:
            received = pipe.recv()
        except (EOFError, OSError):
            return
        # The kernel ends a call whose owner was killed. No thread could, while the call holds Python's lock.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, longest_s)
        answer = _answer(function, received)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        pipe.send_bytes(answer)


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Returns the outcome of a call, pickled."""
    try:
        value = function(*arguments)
    except MemoryError:
        return _OUT_OF_MEMORY_ANSWER
    except BaseException as error:
        return pickle.dumps(CallResult(None, f"raised {_words(error)}"))
    try:
        return pickle.dumps(CallResult(value))
    except MemoryError:
        return _OUT_OF_MEMORY_ANSWER
    except BaseException as error:
        return pickle.dumps(CallResult(None, f"returned a value that cannot be sent: {_words(error)}"))
