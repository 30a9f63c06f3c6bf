"""Limits the memory that a running process may request, or the memory that it may have."""

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")


def cgroups() -> str:
    """Returns the version of cgroups whose memory limits can be set from here: "v2", "v1", or "" if none."""
    controllers = _V2 / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split() and os.access(_V2, os.W_OK):
        return "v2"
    return "v1" if (_V1 / "memory.limit_in_bytes").exists() and os.access(_V1, os.W_OK) else ""


@contextmanager
def killed_above(mib: int, pid: int) -> Generator[None]:
    """Makes the kernel kill a process that takes `mib` more memory than it has, for the length of a with block.

    The process moves to a cgroup of its own. The memory that it has already stays charged to its old cgroup.

    Raises:
        OSError: This needs root, and a memory controller.
    """
    root = _V2 if cgroups() == "v2" else _V1
    group = root / f"deerstalker-fault-{os.getpid()}-{pid}"
    group.mkdir()
    try:
        limit = group / ("memory.max" if root is _V2 else "memory.limit_in_bytes")
        limit.write_text(str(mib << 20))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(left)
        group.rmdir()


def refuse_above(mib: int, pid: int) -> None:
    """Lets a process request `mib` more private memory than it has; requests beyond that are refused."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    has_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    limit = (has_kib << 10) + (mib << 20)
    resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))
