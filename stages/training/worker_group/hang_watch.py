"""Distinguishes hung worker processes from busy ones by the kernel's counters.

A step may take minutes and a start reads gigabytes, so a lack of progress reports alone proves little. A hung process
neither needs a core nor moves data, and the kernel marks a stopped process as such.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from stages.processes.stopped_processes import STOPPED_LIMIT_S, StoppedProcessWatch
from stages.training.worker_group.job_queue import JobQueue

CHECK_INTERVAL_S = 1.0
IDLE_LIMIT_S = 10.0
MIN_RUNNING_SHARE = 0.03
"""A thread works if it ran for this share of the idle limit; one that only polls runs for a tenth of this share."""
MIN_RUNNABLE_SHARE = 0.5
"""A thread works if it ran or waited for a core for this share of the idle limit: other programs may use the cores."""
WORK_BYTES = 1 << 20
"""A process works if it read or wrote this many bytes."""


class HangWatch:
    """Watches the processes of a worker group that run on this machine.

    Args:
        queue: The group's job queue, which lists their process ids.
        idle_limit_s: Seconds for which the processes may neither report progress nor work.
    """

    def __init__(self, queue: JobQueue, *, idle_limit_s: float = IDLE_LIMIT_S) -> None:
        self._queue, self._idle_limit_s = queue, idle_limit_s
        self._stopped_watch = StoppedProcessWatch(queue.announced)
        self._processes_checked_at = self._work_checked_at = float("-inf")
        self._lost = False
        self._work = _Work({}, {})
        self._worked_at = time.monotonic()

    def lost(self) -> bool:
        """Returns whether a process is gone."""
        self._check_processes()
        return self._lost

    def stopped(self) -> bool:
        """Returns whether a signal has stopped a process for `stages.processes.stopped_processes.STOPPED_LIMIT_S`."""
        return self._stopped_watch.stopped_for_long()

    def problem(self, silent_s: float, limit_s: float) -> str:
        """Returns why the processes count as hung, or "" if they do not.

        Args:
            silent_s: Seconds since the last report of progress.
            limit_s: Seconds for which working processes may be silent.
        """
        self._check_processes()
        if self.stopped():
            return f"no progress: a worker has been stopped for {STOPPED_LIMIT_S:.0f} s"
        if silent_s > limit_s:
            return f"no progress for {limit_s:.0f} s"
        if silent_s < CHECK_INTERVAL_S:
            self._worked_at = time.monotonic()
            return ""
        self._check_work()
        idle_s = time.monotonic() - self._worked_at
        return f"neither progress nor work for {self._idle_limit_s:.0f} s" if idle_s > self._idle_limit_s else ""

    def _check_processes(self) -> None:
        now = time.monotonic()
        if now - self._processes_checked_at < CHECK_INTERVAL_S:
            return
        if now - self._processes_checked_at > 4 * CHECK_INTERVAL_S:  # this process itself did not run
            self._worked_at = now
        self._processes_checked_at = now
        self._lost = not all(self._queue.processes().values())

    def _check_work(self) -> None:
        now = time.monotonic()
        if now - self._work_checked_at < CHECK_INTERVAL_S:
            return
        self._work_checked_at = now
        work = _work_so_far(_with_descendants(list(self._queue.processes())))
        if work.exceeds(self._work, self._idle_limit_s):
            self._work, self._worked_at = work, now


@dataclass(frozen=True)
class _Work:
    """The work that processes have done since they started.

    Attributes:
        threads: By thread id, the seconds for which it ran and the seconds for which it waited for a core.
        bytes_moved: By process id, bytes read and written.
        disk: Whether a thread waits for a disk.
    """

    threads: Mapping[str, tuple[float, float]]
    bytes_moved: Mapping[int, int]
    disk: bool = False

    def exceeds(self, before: "_Work", limit_s: float) -> bool:
        """Returns whether a process worked since an earlier reading; `limit_s` is the idle limit."""
        for thread, (ran_s, waited_s) in self.threads.items():
            ran_before_s, waited_before_s = before.threads.get(thread, (0.0, 0.0))
            ran_since_s = ran_s - ran_before_s
            runnable_since_s = ran_since_s + waited_s - waited_before_s
            if ran_since_s >= MIN_RUNNING_SHARE * limit_s or runnable_since_s >= MIN_RUNNABLE_SHARE * limit_s:
                return True
        return self.disk or any(
            moved - before.bytes_moved.get(pid, 0) >= WORK_BYTES for pid, moved in self.bytes_moved.items()
        )


def _with_descendants(pids: list[int]) -> list[int]:
    """Returns processes and all their descendants, such as compilers.

    One pass over all processes: `psutil.Process.children(recursive=True)` makes one for each worker, which took 7.6 ms
    instead of 3.3 for 8 workers among 114 processes.
    """
    parents = {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    family = dict.fromkeys(pids)
    while children := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
        family |= dict.fromkeys(children)
    return list(family)


def _work_so_far(pids: list[int]) -> _Work:
    """Returns the work of processes. Threads are read from /proc, because psutil reports neither waits nor states."""
    threads: dict[str, tuple[float, float]] = {}
    bytes_moved: dict[int, int] = {}
    disk = False
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            try:
                ran_ns, waited_ns, _ = (thread / "schedstat").read_text().split()
                disk = disk or (thread / "stat").read_text().rpartition(")")[2].split()[0] == "D"
            except (OSError, ValueError):
                continue
            threads[thread.name] = int(ran_ns) / 1e9, int(waited_ns) / 1e9
        with suppress(psutil.Error, OSError):
            counts = psutil.Process(pid).io_counters()
            bytes_moved[pid] = counts.read_chars + counts.write_chars
    return _Work(threads, bytes_moved, disk)
