"""The control groups (cgroups) of this process, version 1 and 2. psutil does not read them."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""The proc file system, and the root of the control groups: version 2, version 1, or both."""


def control_groups(controller: str) -> Iterator[tuple[Path, Literal["v1", "v2"]]]:
    """Yields folder and version of each cgroup of this process, from its own group up to the root.

    Args:
        controller: `memory` or `cpu`, for instance.

    Raises:
        OSError: There is no proc file system.
    """
    for line in (PROC / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root, version = CGROUPS / controller, "v1"
        elif not controllers:
            root, version = CGROUPS, "v2"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents[: len(group.parts) - len(root.parts)]):
            yield folder, version


def usable_cores() -> int:
    """Returns the number of cores that this process may keep busy: those it may run on, within the CPU limit."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError):  # no proc file system
        cores = min(cores, math.ceil(cpu_quota() or cores))
    return cores


def cpu_quota() -> float | None:
    """Returns the CPU limit of this process's cgroups in cores, or None without a limit."""
    quotas: list[float] = []
    for folder, version in control_groups("cpu"):
        try:
            if version == "v2":
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            continue
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)
