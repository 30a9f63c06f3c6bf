"""Waits for another process.

A limit is a time without progress, not a total time: a slow or busy machine takes longer for the same steps, a hung
process makes none.
"""

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def wait_until(
    reached: Callable[[], object],
    limit_s: float,
    told: Callable[[], object] = lambda: "",
    poll_s: float = 0.1,
    progress: Callable[[], object] = lambda: None,
) -> float:
    """Calls `reached` until it returns true, and returns the seconds that this took.

    Args:
        reached: May raise if further waiting is useless.
        limit_s: Seconds without progress after which waiting ends.
        told: Returns the present state, for the error.
        progress: Its result changes if there is progress; the limit then begins again.

    Raises:
        AssertionError: Not reached, and no progress within the limit.
    """
    started = checked = time.monotonic()
    before = progress()
    while not reached():
        if time.monotonic() > checked + limit_s:
            now = progress()
            assert now != before, f"not reached, no progress in {limit_s:.0f} s: {told()}"
            checked, before = time.monotonic(), now
        time.sleep(poll_s)
    return time.monotonic() - started


def output_of(process: "subprocess.Popen[Any]", limit_s: float, *folders: Path) -> tuple[Any, Any]:
    """Waits for the end of a process, and returns what it wrote to its pipes.

    Args:
        limit_s: Seconds without a change in the folders after which it counts as hung.
        *folders: Folders of its artifacts.

    Raises:
        subprocess.TimeoutExpired: It hangs; it was killed.
    """
    before = changes(*folders)
    while True:
        try:
            return process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            if (now := changes(*folders)) == before:
                process.kill()
                raise
            before = now


def changes(*folders: Path) -> dict[Path, int]:
    """Returns the size of every file in some folders; those of databases are left out, which change by themselves."""
    sizes: dict[Path, int] = {}
    for folder in folders:
        for place, _, names in os.walk(folder):  # it skips folders that vanish meanwhile
            for path in (Path(place, name) for name in names if ".db" not in name):
                with suppress(FileNotFoundError):
                    sizes[path] = path.stat().st_size
    return sizes
