"""Memory of a process: what there is left, and whether the want of it ended a child.

Want of memory is told from other ends by what the child said, and by what the kernel counted. A refused allocation
comes again with the same settings, so it is no transient error. A process that the kernel killed may have had greedy
neighbours, so it is; its message says the same about what to change.
"""

import ctypes
import re
import resource
from pathlib import Path

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


def spare_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What this process may still take, in bytes: the least of what the machine and each of its cgroups leave.

    Files that the kernel keeps in memory count as spare, as they do in its own `MemAvailable`.

    Args:
        proc: Where the kernel tells of processes.
        cgroups: Where it shows control groups: version 2, version 1, or both.

    Raises:
        OSError: The kernel tells nothing of processes there.
    """
    machine = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
    spare = [int(machine["MemAvailable"].split()[0]) * 1024]
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, limit, used, kind = cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        elif not controllers:
            root, limit, used, kind = cgroups, "memory.max", "memory.current", ""
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents[: len(group.parts) - len(root.parts)]):
            if (folder / limit).exists() and (allowed := (folder / limit).read_text().strip()) != "max":
                counts = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
                files = int(counts[f"{kind}active_file"]) + int(counts[f"{kind}inactive_file"])
                spare.append(int(allowed) - int((folder / used).read_text()) + files)
    return max(0, min(spare))


def hand_back_freed(sharers: int = 1) -> None:
    """Hands memory that this process has freed back to the kernel, unless as much as it holds is spare anyway.

    What is kept need not be faulted in again: that takes a sixth of a SmolLM2 step on a CPU. Linux with glibc only.

    Args:
        sharers: Processes of the same size on this machine that do the same.
    """
    held = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if spare_bytes() < held * sharers:
        ctypes.CDLL(None).malloc_trim(0)
