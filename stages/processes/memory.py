"""How much memory is left, and whether a lack of memory ended a child process.

A lack of memory is recognized by the child's messages and by the kernel's counters. A refused allocation would be
refused again with the same settings, so it is not a transient error. A process may be killed by the kernel because
other processes use too much memory, so that error is transient. Both errors give the same advice about settings.
"""

import ctypes
import gc
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil

from stages.processes import cgroups

_REFUSED = re.compile(
    r"can't allocate memory|Cannot allocate memory|not enough memory|out of memory|std::bad_alloc|MemoryError"
    r"|OutOfMemoryError|on kv cache allocation is less than|is less than desired [CG]PU memory|No available memory for"
)


def refused_allocation(text: str) -> str:
    """Returns an excerpt of the first line that reports a refused allocation, or "" if no line does.

    Args:
        text: An error message or a log.
    """
    for line in text.splitlines():
        if match := _REFUSED.search(line):
            return line[max(0, match.start() - 120) : match.end() + 120].strip()
    return ""


def kernel_kills() -> int:
    """Returns how many processes the kernel has killed on this machine for lack of memory, in any cgroup."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def spare_bytes() -> int:
    """Returns the memory that this process may still allocate, in bytes: the minimum over the machine and its cgroups.

    The page cache counts as spare, as it does in the kernel's `MemAvailable`. psutil does not read cgroup limits.

    Raises:
        OSError: There is no proc file system.
    """
    spare = [_meminfo("MemAvailable")]
    for folder, limit, version in _limited_groups():
        usage_file, prefix = ("memory.usage_in_bytes", "total_") if version == "v1" else ("memory.current", "")
        counts = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
        page_cache = int(counts[f"{prefix}active_file"]) + int(counts[f"{prefix}inactive_file"])
        spare.append(limit - int((folder / usage_file).read_text()) + page_cache)
    return max(0, min(spare))


def limit_bytes() -> int | None:
    """Returns the smallest memory limit of this process's cgroups, in bytes; None unless it is below the machine's.

    Raises:
        OSError: There is no proc file system.
    """
    smallest = min((limit for _, limit, _ in _limited_groups()), default=None)
    return smallest if smallest is not None and smallest < _meminfo("MemTotal") else None


def _meminfo(name: str) -> int:
    """Returns a value of the machine's meminfo, in bytes."""
    machine = dict(line.split(":") for line in (cgroups.PROC / "meminfo").read_text().splitlines())
    return int(machine[name].split()[0]) * 1024


def _limited_groups() -> Iterator[tuple[Path, int, Literal["v1", "v2"]]]:
    """Yields the folder, the limit in bytes and the version of each cgroup of this process that has a memory limit."""
    for folder, version in cgroups.control_groups("memory"):
        file = folder / ("memory.limit_in_bytes" if version == "v1" else "memory.max")
        if file.exists() and (limit := file.read_text().strip()) != "max":
            yield folder, int(limit), version


def hand_back_freed(sharers: int | None = None) -> None:
    """Releases freed memory to the kernel; Linux with glibc only.

    Args:
        sharers: Number of processes of this size on this machine that call this function, this one included. If the
            spare memory is enough for all of them, the memory is kept, because page faults for new memory take a sixth
            of a SmolLM2 step on a CPU. None: it is not kept.
    """
    if sharers is None or spare_bytes() < psutil.Process().memory_info().rss * sharers:
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def quick_collections() -> Generator[None]:
    """Leaves the objects from before the block, most of them of libraries, out of collections of garbage inside it.

    Python looks through all others only when many are new, so that a process lets much garbage lie: call `gc.collect`.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
