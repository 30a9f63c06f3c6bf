"""Processes by name, and pool processes that do not outlive the process they work for."""

import multiprocessing
import os
import threading
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None where there is none, or a dead one.

    With the pid, it names the process.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in {"Z", "X"} else int(rest[18])


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
