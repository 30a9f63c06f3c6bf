"""Real processes of a worker group, found by the folder on their command line."""

from pathlib import Path

from stages.training.worker_group.group import WorkerGroup
from tests.support.jobs import queue_folder


def workers(group: WorkerGroup, node: int = 0) -> list[int]:
    """Returns the pids of a worker group's workers on one of its nodes; all nodes may be on this machine."""
    folder = queue_folder(group)
    return [
        pid
        for pid, line in command_lines()
        if f"--queue={folder} --node-rank={node} " in f"{line} " and "torch.distributed" not in line
    ]


def command_lines() -> list[tuple[int, str]]:
    """Returns the pid and the command line of every process."""
    found: list[tuple[int, str]] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace")))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
