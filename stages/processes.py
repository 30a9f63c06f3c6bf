"""Processes by name, and a pool of processes that do not outlive the one they work for."""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, TypeVar

from artifacts.errors import DeerstalkerError, TransientError
from stages.scratch import own

_owning = threading.Lock()
_owned: dict[Path, int] = {}
"""Locks of temporary folders, which are held until this process ends."""

T = TypeVar("T")
R = TypeVar("R")


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

    One that is at work would notice when it is done only.
    """
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="parent-watch", daemon=True).start()


class Pool:
    """Processes for work in pure Python, shared by threads; each is started when it is needed, and after a death anew.

    They are handed work and hand back results over a pipe each. The processes of Python's own executor share one, on
    which it waits for ever for the second half of what a process was sending when it was killed.

    Args:
        workers: How many; None is one for each core that this process may use.
    """

    def __init__(self, workers: int | None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self.workers, "pool")
        self._lock = threading.Lock()
        self._started: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._ended = False

    def map(self, work: Callable[[T], R], items: Sequence[T], *, chunksize: int) -> list[R]:
        """What `work` returns for each item, in order.

        Raises:
            TransientError: A process died.
            DeerstalkerError: The pool was ended for good.
        """
        chunks = [items[start : start + chunksize] for start in range(0, len(items), chunksize)]
        futures = [self._threads.submit(self._have_done, work, chunk) for chunk in chunks]
        try:
            return [result for future in futures for result in future.result()]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Ends the processes; the next use starts others."""
        with self._lock:
            started, self._started, self._idle = self._started, [], []
        for worker in started:
            worker.process.kill()

    def kill(self) -> None:
        """Ends the processes at once and for good: threads that are still to use the pool fail."""
        with self._lock:
            self._ended = True
        self.close()

    def _have_done(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        worker = None
        try:
            worker = self._take()
            done, answer = worker.ask(work, items)
        except (EOFError, OSError) as error:
            self._give_back(worker, alive=False)
            failure = DeerstalkerError if self._ended else TransientError
            raise failure("process pool", "a process died", "", "is memory short?") from error
        self._give_back(worker, alive=True)
        if not done:
            raise answer
        return answer

    def _take(self) -> "_Worker":
        with self._lock:
            if self._ended:
                raise DeerstalkerError("process pool", "asked for work after its end", "a run that goes on")
            while self._idle:
                worker = self._idle.pop()
                if worker.process.is_alive():
                    return worker
                self._started.remove(worker)
            worker = _Worker()
            self._started.append(worker)
            return worker

    def _give_back(self, worker: "_Worker | None", *, alive: bool) -> None:
        with self._lock:
            if worker in self._started:  # not closed meanwhile
                (self._idle.append if alive else self._started.remove)(worker)


class _Worker:
    """A process that does one piece of work at a time."""

    def __init__(self) -> None:
        # Not forked from this process, which has threads; the server that forks them ends when this process does.
        _own_sockets()
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that its death is the end of the pipe

    def ask(self, work: Callable[[T], R], items: Sequence[T]) -> tuple[bool, Any]:
        """Whether the work succeeded, and what it returned for each item or else the exception.

        Raises:
            EOFError, OSError: The process died.
        """
        self._pipe.send((work, items))
        return self._pipe.recv()


def _own_sockets() -> None:
    """Makes this process the owner of the folder for the sockets of its process server, which a kill leaves behind."""
    with _owning:
        folder = Path(get_temp_dir())
        if folder not in _owned:
            _owned[folder] = own(folder)


def _serve(pipe: Connection) -> None:
    end_with_parent()
    while True:
        try:
            work, items = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((True, [work(item) for item in items]))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send((False, error))
