"""Runs trainer workers on a second or later machine, for a run on the first one.

Started as `python -m stages.training.worker_group.node FOLDER --node-rank N`.

The command joins each worker group that appears in the folder, one after the other, until a signal ends it.
"""

import argparse
import os
import stat
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from artifacts.errors import DeerstalkerError
from stages.processes.awake import LastProgress
from stages.training.worker_group.agent import start_agent
from stages.training.worker_group.hang_watch import HangWatch
from stages.training.worker_group.job_queue import JobQueue
from stages.training.worker_group.network import network_environment

POLL_S = 0.2
OWNER_SILENT_LIMIT_S = 30.0


def open_groups(folder: Path) -> list[JobQueue]:
    """Returns the job queues of this user's worker groups in a folder that have not ended, the newest last.

    Groups of other users are skipped, because whoever can write into a group's folder controls its processes.
    """
    own = [path for path in folder.glob("group-*/hardware.json") if _is_private(path.parent)]
    by_age = sorted(own, key=lambda path: path.stat().st_mtime_ns)
    return [queue for path in by_age if not (queue := JobQueue(path.parent)).over()]


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == _user_in(folder.parent) and not status.st_mode & 0o022


@cache
def _user_in(folder: Path) -> int:
    """Returns this user's id as the folder's file system sees it, which may differ from the id on this machine."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_uid


def join(queue: JobQueue, node_rank: int) -> str:
    """Runs the workers of this machine until the worker group ends.

    Args:
        queue: Job queue of the group.
        node_rank: Number of this machine, from 1.

    Returns:
        The reason for the end.

    Raises:
        BadInputError: The rendezvous is unusable from this machine, or public.
        TransientError: The name of the rendezvous cannot be resolved at the moment.
    """
    hardware = queue.hardware()
    if not 0 < node_rank < hardware.nodes:
        return f"it has {hardware.nodes} nodes, and none of them is number {node_rank}"
    agent = start_agent(queue, hardware, node_rank, network_environment(hardware))
    owner, watch = LastProgress(), HangWatch(queue)
    try:
        while True:
            if queue.over():
                return "its owner ended it"
            if agent.exit_code() is not None or watch.lost():
                return f"a worker ended, see {queue.log_file(node_rank)}"
            if watch.stopped():
                return "a worker was stopped"
            owner.observe(heartbeat := queue.last_owner_heartbeat())
            if owner.age_s > (OWNER_SILENT_LIMIT_S if heartbeat else hardware.no_progress_limit_s):
                return "its owner is gone"
            time.sleep(POLL_S)
    finally:
        agent.kill()


def main() -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the profile's trainer.shared_dir")
    parser.add_argument("--node-rank", type=int, required=True, help="number of this machine; the first one is 0")
    arguments = parser.parse_args()
    joined: set[Path] = set()
    while True:
        for queue in open_groups(arguments.folder)[-1:]:  # owners of older groups are gone
            if queue.folder not in joined:
                print(f"joining {queue.folder}", flush=True)
                joined.add(queue.folder)
                try:
                    print(f"left it: {join(queue, arguments.node_rank)}", flush=True)
                except DeerstalkerError as error:
                    print(f"did not join: {error}", flush=True)
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
