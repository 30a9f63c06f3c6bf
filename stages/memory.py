"""Memory of a process: what there is left, and whether the want of it ended a child.

Want of memory is told from other ends by what the child said, and by what the kernel counted. A refused allocation
comes again with the same settings, so it is no transient error. A process that the kernel killed may have had greedy
neighbours, so it is; its message says the same about what to change.
"""

import ctypes
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stages.cgroups import CGROUPS, PROC, control_groups

_REFUSED = re.compile(
    r"can't allocate memory|Cannot allocate memory|not enough memory|out of memory|std::bad_alloc|MemoryError"
    r"|OutOfMemoryError|on kv cache allocation is less than|is less than desired [CG]PU memory|No available memory for"
)


def refused_allocation(text: str) -> str:
    """The part of the first line that says that memory was refused, "" where none does.

    Args:
        text: An error message or a log.
    """
    for line in text.splitlines():
        if found := _REFUSED.search(line):
            return line[max(0, found.start() - 120) : found.end() + 120].strip()
    return ""


def kernel_kills() -> int:
    """How many processes the kernel has killed on this machine for want of memory, in whatever cgroup."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def spare_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """What this process may still take, in bytes: the least of what the machine and each of its cgroups leave.

    Files that the kernel keeps in memory count as spare, as they do in its own `MemAvailable`.

    Args:
        proc: Where the kernel tells of processes.
        cgroups: Where it shows control groups: version 2, version 1, or both.

    Raises:
        OSError: The kernel tells nothing of processes there.
    """
    spare = [_meminfo(proc, "MemAvailable")]
    for folder, allowed, version in _limited_groups(proc, cgroups):
        used, kind = ("memory.usage_in_bytes", "total_") if version == "v1" else ("memory.current", "")
        counts = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
        files = int(counts[f"{kind}active_file"]) + int(counts[f"{kind}inactive_file"])
        spare.append(allowed - int((folder / used).read_text()) + files)
    return max(0, min(spare))


def limit_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Returns the least memory limit of this process's control groups, in bytes; None if the machine has no more.

    Args:
        proc: Where the kernel describes processes.
        cgroups: Where it shows control groups.

    Raises:
        OSError: The kernel describes no processes there.
    """
    least = min((allowed for _, allowed, _ in _limited_groups(proc, cgroups)), default=None)
    return least if least is not None and least < _meminfo(proc, "MemTotal") else None


def _meminfo(proc: Path, name: str) -> int:
    machine = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    return int(machine[name].split()[0]) * 1024


def _limited_groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, int, Literal["v1", "v2"]]]:
    """Yields the folder, the limit in bytes and the version of each of this process's groups that has a limit."""
    for folder, version in control_groups("memory", proc, cgroups):
        limit = folder / ("memory.limit_in_bytes" if version == "v1" else "memory.max")
        if limit.exists() and (allowed := limit.read_text().strip()) != "max":
            yield folder, int(allowed), version


def hand_back_freed(sharers: int = 1) -> None:
    """Hands memory that this process has freed back to the kernel, unless as much as it holds is spare anyway.

    What is kept need not be faulted in again: that takes a sixth of a SmolLM2 step on a CPU. Linux with glibc only.

    Args:
        sharers: Processes of the same size on this machine that do the same.
    """
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if spare_bytes() < held * sharers:
        ctypes.CDLL(None).malloc_trim(0)
