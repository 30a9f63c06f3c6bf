"""Tells want of memory from other ends of a child process: by what it said, and by what the kernel counted.

A refused allocation comes again with the same settings, so it is no transient error. A process that the kernel killed
may have had greedy neighbours, so it is; its message says the same about what to change.
"""

import re
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
