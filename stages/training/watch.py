"""Tells hung worker processes from busy ones by what the kernel knows of them.

A step may take minutes and starting up reads gigabytes, so silence alone says little. A process that hangs neither
wants a core nor moves data, and a process that was stopped is marked as such.
"""

import time
from pathlib import Path

from stages.training.spool import Spool

LOOK_INTERVAL_S = 1.0
STOPPED_LIMIT_S = 5.0
IDLE_LIMIT_S = 10.0
WORK_SHARE = 0.05
"""Cores, had or waited for, that processes at work use at least."""
WORK_BYTES = 1 << 20
"""Bytes read or written that are work too."""


class Watch:
    """Looks at the processes of a gang that run on this machine.

    Args:
        spool: knows their pids.
        stopped_limit_s: how long one may be held by a signal.
        idle_limit_s: how long all may neither report progress nor work.
    """

    def __init__(
        self, spool: Spool, *, stopped_limit_s: float = STOPPED_LIMIT_S, idle_limit_s: float = IDLE_LIMIT_S
    ) -> None:
        self._spool, self._stopped_limit_s, self._idle_limit_s = spool, stopped_limit_s, idle_limit_s
        self._looked_at = self._looked_for_work_at = float("-inf")
        self._lost = False
        self._stopped_since: float | None = None
        self._work = (0.0, 0)
        self._worked_at = time.monotonic()

    def lost(self) -> bool:
        """Whether a process is gone."""
        self._look()
        return self._lost

    def stopped(self) -> bool:
        """Whether a process has been held by a signal for a while."""
        self._look()
        return self._stopped_since is not None and time.monotonic() - self._stopped_since >= self._stopped_limit_s

    def wrong(self, silent_s: float, limit_s: float) -> str:
        """Says what is wrong with the processes, "" while nothing is.

        Args:
            silent_s: seconds since they reported progress.
            limit_s: how long they may be silent at work.
        """
        if self.stopped():
            return f"no progress: a worker has been stopped for {self._stopped_limit_s:.0f} s"
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
        if (
            now - self._looked_at > 4 * LOOK_INTERVAL_S
        ):  # this process itself did not run: what was seen before is stale
            self._worked_at, self._stopped_since = now, None
        self._looked_at = now
        processes = self._spool.processes()
        self._lost = not all(processes.values())
        if not any(_state(pid) in "Tt" for pid in processes if processes[pid]):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now

    def _look_for_work(self) -> None:
        now = time.monotonic()
        if now - self._looked_for_work_at < LOOK_INTERVAL_S:
            return
        self._looked_for_work_at = now
        seconds, moved, waiting = _work(_with_descendants(list(self._spool.processes())))
        before_s, before_bytes = self._work
        less = seconds < before_s or moved < before_bytes  # one of them ended and took its count along
        worked = seconds - before_s >= WORK_SHARE * self._idle_limit_s or moved - before_bytes >= WORK_BYTES
        if waiting or less or worked:
            self._work, self._worked_at = (seconds, moved), now


def _state(pid: int) -> str:
    """State letter of a process, "X" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


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


def _work(pids: list[int]) -> tuple[float, int, bool]:
    """What processes did so far: core seconds (had or waited for), bytes moved, and whether one waits for a disk."""
    seconds, moved, waiting = 0.0, 0, False
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                had, waited, _ = (task / "schedstat").read_text().split()
                waiting = waiting or (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"
            except (OSError, ValueError):
                continue
            seconds += (int(had) + int(waited)) / 1e9
        try:
            counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        except OSError:
            continue
        moved += int(counts["rchar"]) + int(counts["wchar"])
    return seconds, moved, waiting
