"""Worker groups whose processes are forked, so that torch is imported once: `python -m tests.support.forked_workers`.

Each process runs the jobs of its group's queue with the real `JobRunner`. Neither torchrun nor a guard takes part.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.training.job import ScoreJob, TrainJob
from stages.training.worker_group.events import EventWriter
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue

Job = TrainJob | ScoreJob


def run_groups(folder: Path, groups: Mapping[str, tuple[TrainHardware, Sequence[Job]]]) -> None:
    """Runs the jobs of each group, one group after the other.

    Args:
        folder: Folder for the queues.
        groups: Layout and jobs by name of the group.

    Raises:
        CalledProcessError: A process of a group failed.
    """
    for name, (hardware, jobs) in groups.items():
        (folder / name).mkdir(parents=True)
        queue = JobQueue(folder / name)
        queue.write_hardware(hardware)
        for number, job in enumerate(jobs):
            queue.submit(number, job)
    command = [sys.executable, "-m", "tests.support.forked_workers", *(str(folder / name) for name in groups)]
    subprocess.run(command, check=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})


def _worker(queue: JobQueue, rank: int, jobs: int) -> None:
    from stages.training.worker_group.job_runner import JobRunner

    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(queue.hardware().processes)}
    runner = JobRunner(queue, rank)
    for number in range(jobs):
        job = queue.read(number)
        events = EventWriter(job.events_file)
        if isinstance(job, TrainJob):
            queue.allow_state(number)
            runner.train(job, events, number)
        else:
            runner.score(job, events)


def main() -> int:
    """Entry point; the arguments are folders of queues."""
    import stages.training.worker_group.job_runner  # noqa: F401  before the forks

    context = multiprocessing.get_context("fork")
    for folder in sys.argv[1:]:
        queue = JobQueue(Path(folder))
        jobs = len(list(queue.folder.glob("job-*.json")))
        ranks = range(queue.hardware().world)
        workers = [context.Process(target=_worker, args=(queue, rank, jobs)) for rank in ranks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
