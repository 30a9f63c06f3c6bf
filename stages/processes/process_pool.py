"""The identity of a process, and a pool of processes that do not outlive their owner."""

import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any, TypeVar

from artifacts.errors import DeerstalkerError, TransientError
from stages.processes.cgroups import usable_cores
from stages.processes.scratch import own, socket_parent

_folder_locks: dict[Path, int] = {}
"""Locks of temporary folders by path; this process holds them until it ends."""
_folder_locks_guard = threading.Lock()
_HASH_SEED = "PYTHONHASHSEED"
_reaping = threading.Lock()
"""Held where exit codes are read: of two threads that read one at once, `multiprocessing` tells one that it is 255."""

T = TypeVar("T")
R = TypeVar("R")


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in clock ticks since boot, or None if it does not exist or is a zombie.

    Process id and start time together identify a process on a machine. `psutil.Process.create_time` does not, because
    it adds the boot time, which moves with the system clock: two readers may get different values.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


def end_with_parent() -> None:
    """Starts a thread that ends this process as soon as its `multiprocessing` parent is gone; ignores Ctrl-C.

    Without the thread, a process that computes would notice this only when its work is done. A terminal sends Ctrl-C to
    this process, too, which would print a traceback; the parent alone decides what ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, name="parent-watch", daemon=True).start()


class Pool:
    """A pool of processes for work in pure Python, shared by threads.

    A process starts when it is needed, and is replaced when it dies. Each process has a pipe of its own. Those of
    `concurrent.futures.ProcessPoolExecutor` share one, and the executor waits forever for the second half of a message
    if its sender is killed.

    Args:
        workers: Number of processes; None for one per core that this process may use.
    """

    def __init__(self, workers: int | None) -> None:
        self.workers = workers or usable_cores()
        self._threads = ThreadPoolExecutor(self.workers, "pool")
        self._lock = threading.Lock()
        self._started: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._ended = False

    def map(self, work: Callable[[T], R], items: Sequence[T], *, chunksize: int) -> list[R]:
        """Returns the results of `work` for each item, in order.

        Args:
            work: A function that can be pickled; its exceptions are raised here.
            items: Its arguments.
            chunksize: Number of items that are sent to a process at once.

        Raises:
            TransientError: A process died.
            DeerstalkerError: The pool was killed.
        """
        chunks = [items[start : start + chunksize] for start in range(0, len(items), chunksize)]
        return list(chain.from_iterable(self._threads.map(partial(self._run, work), chunks)))

    def close(self) -> None:
        """Ends the processes; the next use starts new ones."""
        with self._lock:
            started, self._started, self._idle = self._started, [], []
        for worker in started:
            worker.process.kill()

    def kill(self) -> None:
        """Ends the processes and the pool: later calls of `map` fail."""
        with self._lock:
            self._ended = True
        self.close()

    def _run(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        worker = self._take()
        try:
            succeeded, answer = worker.run(work, items)
        except (EOFError, OSError) as error:
            self._give_back(worker, alive=False)
            error_class = DeerstalkerError if self._ended else TransientError
            raise error_class("process pool", "a process died", "", "check whether memory is short") from error
        self._give_back(worker, alive=True)
        if not succeeded:
            raise answer
        return answer

    def _take(self) -> "_Worker":
        with self._lock:
            if self._ended:
                raise DeerstalkerError("process pool", "used after its end", "a run that has not ended")
            while self._idle:
                worker = self._idle.pop()
                if worker.process.is_alive():
                    return worker
                self._started.remove(worker)
            worker = _Worker()
            self._started.append(worker)
            return worker

    def _give_back(self, worker: "_Worker", *, alive: bool) -> None:
        with self._lock:
            if worker in self._started:  # `close` may have removed it
                (self._idle.append if alive else self._started.remove)(worker)


class _Worker:
    """A process that works on one chunk of items at a time."""

    def __init__(self) -> None:
        self.process, self._pipe = start_worker(_serve)

    def run(self, work: Callable[[T], R], items: Sequence[T]) -> tuple[bool, Any]:
        """Returns whether the work succeeded, and its results for the items or its exception.

        Raises:
            EOFError, OSError: The process died.
        """
        self._pipe.send((work, items))
        return self._pipe.recv()


def start_worker(serve: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Starts a process that calls `serve(pipe, *arguments)`; returns the process and this process's end of the pipe.

    This process has threads, so it must not fork; the fork server ends when this process does.

    Raises:
        TransientError: It does not start, for instance because memory is short or the fork server was killed.
    """
    context = multiprocessing.get_context("forkserver")
    try:
        _own_temporary_folder()
        _start_fork_server()
        pipe, child_end = context.Pipe()
        process = context.Process(target=serve, args=(child_end, *arguments), daemon=True)
        with _reaping:  # it checks which processes have ended
            process.start()
    except (EOFError, OSError) as error:
        raise TransientError("process pool", f"a process did not start: {str(error) or 'its server died'}") from error
    child_end.close()  # so that the pipe ends when the child dies
    return process, pipe


def exit_code(process: BaseProcess, wait_s: float) -> int | None:
    """Waits for the end of a process and returns its exit code; None if it has not ended after `wait_s`."""
    connection.wait([process.sentinel], wait_s)
    with _reaping:
        return process.exitcode


def _start_fork_server() -> None:
    """Starts the fork server, unless it runs, so that sets of texts have the same order in the workers of every run.

    A user's code that makes items may iterate over a set. Other child processes keep their own order. The server
    inherits a blocked SIGINT, because it ignores Ctrl-C only once its interpreter has started.
    """
    seeded = _HASH_SEED in os.environ
    os.environ.setdefault(_HASH_SEED, "0")
    resource_tracker.ensure_running()  # otherwise the call below starts it and leaves SIGINT unblocked
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not seeded:
            os.environ.pop(_HASH_SEED, None)


def _own_temporary_folder() -> None:
    """Makes this process the owner of multiprocessing's folder, so that a sweep removes it if the process is killed.

    The folder, which is made at the first call, holds a socket. A child process makes one of its own instead of its
    parent's, which would have no owner as soon as the child ends.
    """
    with _folder_locks_guard:
        if not _folder_locks and multiprocessing.parent_process() is not None:
            multiprocessing.current_process()._config.pop("tempdir", None)  # pyright: ignore
        chosen, tempfile.tempdir = tempfile.tempdir, socket_parent()
        try:
            folder = Path(get_temp_dir())
        finally:
            tempfile.tempdir = chosen
        if folder not in _folder_locks:
            _folder_locks[folder] = own(folder)


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
