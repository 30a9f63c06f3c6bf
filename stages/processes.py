"""Processes by name, and a pool of processes that do not outlive the one they work for."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from artifacts.errors import DeerstalkerError, TransientError

T = TypeVar("T")
R = TypeVar("R")

_LOOK_S = 1.0


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None where there is none, or a dead one.

    With the pid, it names the process.
    """
    state, *rest = _stat(pid)
    return None if state in "ZX" else int(rest[18])


def state_letter(pid: int) -> str:
    """What a process does: R(unning), S(leeping), D (waiting for a disk), T or t (stopped), Z or X (dead)."""
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    """Fields of proc(5)'s `stat` from the state on, which is X alone where there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X"]


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it through `multiprocessing` is gone, however it went.

    An idle pool process waits for work for ever, and keeps the server alive that forked it.
    """
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="parent-watch", daemon=True).start()


class Pool:
    """Processes for work in pure Python, shared by threads; started when first used, and again after a death.

    There is one in a process: ending it ends whatever `multiprocessing` has started.

    Of Python's executor a thread may wait for ever that hands in work while it breaks, and a process it starts then is
    never ended. So work is handed in and pools are dropped one at a time, and who waits looks whether its pool stands.

    Args:
        workers: How many; None is one for each core that this process may use.
    """

    def __init__(self, workers: int | None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._executor: ProcessPoolExecutor | None = None
        self._ended = False

    def map(self, work: Callable[[T], R], items: Sequence[T], *, chunksize: int) -> list[R]:
        """What `work` returns for each item, in order.

        Raises:
            TransientError: A process died.
            DeerstalkerError: The pool was ended for good.
        """
        executor, futures = None, list[Future[list[R]]]()
        try:
            with self._lock:
                executor = self._running()
                for start in range(0, len(items), chunksize):
                    futures.append(executor.submit(_work_on, work, items[start : start + chunksize]))
            return [result for future in futures for result in self._result(future, executor)]
        # An OSError is raised where the pool, breaking, closes its pipes while another process is being started.
        except (BrokenProcessPool, CancelledError, OSError) as error:
            self._drop(executor)
            failure = DeerstalkerError if self._ended else TransientError
            raise failure("process pool", "a process died", "", "is memory short?") from error
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Ends the processes; the next use starts others."""
        self._drop(self._executor)

    def kill(self) -> None:
        """Ends the processes at once and for good: threads that are still to use the pool fail."""
        with self._lock:
            self._ended = True
        self.close()

    def _running(self) -> ProcessPoolExecutor:
        if self._ended:
            raise DeerstalkerError("process pool", "asked for work after its end", "a run that goes on")
        if self._executor is None:
            # Not forked from this process, which has threads; the server that forks them ends when this process does.
            context = multiprocessing.get_context("forkserver")
            self._executor = ProcessPoolExecutor(self.workers, mp_context=context, initializer=end_with_parent)
        return self._executor

    def _result(self, future: "Future[list[R]]", executor: ProcessPoolExecutor) -> list[R]:
        while not wait([future], _LOOK_S).done:
            if executor is not self._executor:
                raise BrokenProcessPool
        return future.result()

    def _drop(self, executor: ProcessPoolExecutor | None) -> None:
        with self._lock:  # a latecomer of a pool that broke leaves the next one alone
            if executor is None or executor is not self._executor:
                return
            self._executor = None
            executor.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.kill()


def _work_on(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [work(item) for item in items]
