"""Tells hung worker processes from busy ones by what the kernel knows of them.

A step may take minutes and starting up reads gigabytes, so silence alone says little. A process that hangs neither
wants a core nor moves data, and a process that was stopped is marked as such.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.held import HELD_LIMIT_S, HeldWatch
from stages.training.spool import Spool

LOOK_INTERVAL_S = 1.0
IDLE_LIMIT_S = 10.0
HAD_SHARE = 0.03
"""Of a core that a thread at work has at least; threads that only poll have ten times less."""
WANTED_SHARE = 0.5
"""Of the time that a thread at work has or waits for a core, where others leave it less than that."""
WORK_BYTES = 1 << 20
"""Bytes read or written by a process that are work too."""


class Watch:
    """Looks at the processes of a gang that run on this machine.

    Args:
        spool: knows their pids.
        idle_limit_s: how long all may neither report progress nor work.
    """

    def __init__(self, spool: Spool, *, idle_limit_s: float = IDLE_LIMIT_S) -> None:
        self._spool, self._idle_limit_s = spool, idle_limit_s
        self._held = HeldWatch(spool.announced)
        self._looked_at = self._looked_for_work_at = float("-inf")
        self._lost = False
        self._work = _Work({}, {})
        self._worked_at = time.monotonic()

    def lost(self) -> bool:
        """Whether a process is gone."""
        self._look()
        return self._lost

    def stopped(self) -> bool:
        """Whether a process has been held by a signal for a while."""
        return self._held.held()

    def wrong(self, silent_s: float, limit_s: float) -> str:
        """Says what is wrong with the processes, "" while nothing is.

        Args:
            silent_s: seconds since they reported progress.
            limit_s: how long they may be silent at work.
        """
        self._look()
        if self.stopped():
            return f"no progress: a worker has been stopped for {HELD_LIMIT_S:.0f} s"
        if silent_s > limit_s:
            return f"no progress for {limit_s:.0f} s"
        if silent_s < LOOK_INTERVAL_S:
            self._worked_at = time.monotonic()
            return ""
        self._look_for_work()
        idle_s = time.monotonic() - self._worked_at
        return f"neither progress nor work for {self._idle_limit_s:.0f} s" if idle_s > self._idle_limit_s else ""

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_INTERVAL_S:
            return
        if now - self._looked_at > 4 * LOOK_INTERVAL_S:  # this process itself did not run
            self._worked_at = now
        self._looked_at = now
        self._lost = not all(self._spool.processes().values())

    def _look_for_work(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_work_at < LOOK_INTERVAL_S:
            return
        self._looked_for_work_at = now
        work = _work(_with_descendants(list(self._spool.processes())))
        if work.exceeds(self._work, self._idle_limit_s):
            self._work, self._worked_at = work, now


@dataclass(frozen=True)
class _Work:
    """What processes did so far: by thread the seconds it had a core and waited for one, by process the bytes moved."""

    threads: Mapping[str, tuple[float, float]]
    moved: Mapping[int, int]
    disk: bool = False

    def exceeds(self, before: "_Work", limit_s: float) -> bool:
        """Whether there was work since another look, measured against what `limit_s` of it would be."""
        for thread, (had, waited) in self.threads.items():
            had_before, waited_before = before.threads.get(thread, (0.0, 0.0))
            wanted = had + waited - had_before - waited_before
            if had - had_before >= HAD_SHARE * limit_s or wanted >= WANTED_SHARE * limit_s:
                return True
        return self.disk or any(moved - before.moved.get(pid, 0) >= WORK_BYTES for pid, moved in self.moved.items())


def _with_descendants(pids: list[int]) -> list[int]:
    """The processes and all that descend from them, such as compilers."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = dict.fromkeys(pids)
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= dict.fromkeys(more)
    return list(found)


def _work(pids: list[int]) -> _Work:
    threads: dict[str, tuple[float, float]] = {}
    moved: dict[int, int] = {}
    disk = False
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            try:
                had, waited, _ = (thread / "schedstat").read_text().split()
                disk = disk or (thread / "stat").read_text().rpartition(")")[2].split()[0] == "D"
            except (OSError, ValueError):
                continue
            threads[thread.name] = int(had) / 1e9, int(waited) / 1e9
        try:
            counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        except OSError:
            continue
        moved[pid] = int(counts["rchar"]) + int(counts["wchar"])
    return _Work(threads, moved, disk)
