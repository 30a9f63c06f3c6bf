"""Control groups of this process: where the kernel keeps their limits, in version 1 and version 2."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def control_groups(
    controller: str, proc: Path = PROC, cgroups: Path = CGROUPS
) -> Iterator[tuple[Path, Literal["v1", "v2"]]]:
    """Yields the folders of the groups that this process is in, from its own up to the root, and their version.

    Args:
        controller: `memory` or `cpu`, for instance.
        proc: Where the kernel describes processes.
        cgroups: Where it shows control groups.

    Raises:
        OSError: The kernel describes no processes there.
    """
    for line in (proc / "self" / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root, version = cgroups / controller, "v1"
        elif not controllers:
            root, version = cgroups, "v2"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents[: len(group.parts) - len(root.parts)]):
            yield folder, version


def cpu_quota(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """Returns how many cores' worth of time the control groups grant to this process; None without such a limit."""
    quotas: list[float] = []
    for folder, version in control_groups("cpu", proc, cgroups):
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
