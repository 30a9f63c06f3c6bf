"""The entry point of a worker process: runs one job file after another until its owner ends it.

Started by `stages.training.worker_group.group` through
`python -m torch.distributed.run ... -m stages.training.worker_group.worker`. This module imports no torch, so that a
process can announce itself before it spends seconds on that import.
"""

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from artifacts.errors import BadInputError, DiskFullError
from stages.processes.guard import PR_SET_PDEATHSIG, set_process_option
from stages.processes.memory import hand_back_freed, refused_allocation
from stages.training.job import TrainJob
from stages.training.worker_group.agent import AGENT
from stages.training.worker_group.events import EventWriter
from stages.training.worker_group.job_queue import JobQueue

POLL_S = 0.01
OWNER_HEARTBEAT_S = 0.5
BAD_INPUT_STATUS = 3
OUT_OF_MEMORY_STATUS = 4


def serve(queue: JobQueue, rank: int) -> None:
    """Runs the jobs of the queue in order, forever.

    An error ends the process and with it the worker group, so that a half-changed state is never used again.
    """
    gc.disable()  # collecting garbage during the imports would take a tenth of their time
    from stages.training.worker_group.job_runner import JobRunner

    runner = JobRunner(queue, rank)
    gc.freeze()
    gc.enable()
    queue.heartbeat(rank)
    for number in count():
        job_file = queue.job_file(number)
        while not job_file.exists():
            time.sleep(POLL_S)
        job = queue.read(number)
        events = EventWriter(job.events_file)
        with _errors_reported(events, rank):
            if isinstance(job, TrainJob):
                runner.train(job, events, number)
            else:
                runner.score(job, events)
        # The engine needs the memory next; see `agent.worker_environment`.
        runner.free_cached_memory()
        hand_back_freed(int(os.environ["LOCAL_WORLD_SIZE"]))


@contextmanager
def _errors_reported(events: EventWriter, rank: int) -> Generator[None]:
    """Sends an `error` event for an exception in the block and ends the process."""
    try:
        yield
    except (BadInputError, DiskFullError) as error:
        kind = "bad_input" if isinstance(error, BadInputError) else "disk_full"
        parts = (error.where, error.found, error.expected, error.remedy)
        events.send("error", kind=kind, message=str(error), parts=parts, rank=rank)
        raise SystemExit(BAD_INPUT_STATUS) from error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException derives from it
        message = f"{type(error).__name__}: {error}"
        if refused_allocation(message):
            events.send("error", kind="out_of_memory", message=message, rank=rank)
            raise SystemExit(OUT_OF_MEMORY_STATUS) from error
        kind = "not_compiled" if _is_of_compilation(error) else "internal"
        # gloo and NCCL raise a plain RuntimeError for a lost peer, so every other RuntimeError counts as transient.
        transient = isinstance(error, RuntimeError) and kind == "internal"
        events.send("error", kind=kind, message=message, rank=rank, transient=transient)
        raise


def _is_of_compilation(error: BaseException) -> bool:
    """Whether torch.compile raised it, whose module is not imported before something is compiled."""
    module = sys.modules.get("torch._dynamo.exc")
    return module is not None and isinstance(error, module.TorchDynamoException)


def end_with_agent() -> None:
    """Asks the kernel to kill this process when torchrun's agent ends, in case the guard of both was killed."""
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        parent = b""
    if AGENT.encode() not in parent.split(b"\0"):  # it ended before the kernel was asked, and another is the parent now
        sys.exit("torchrun's agent is gone")


def start_owner_heartbeat(queue: JobQueue) -> None:
    """Starts a thread that writes the owner's heartbeat for other machines.

    The heartbeat ends with the owner, because the owner's guard then ends this process.
    """

    def heartbeat() -> None:
        while True:
            queue.owner_heartbeat()
            time.sleep(OWNER_HEARTBEAT_S)

    threading.Thread(target=heartbeat, name="owner-heartbeat", daemon=True).start()


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue", type=Path, required=True, help="folder of job files")
    parser.add_argument("--node-rank", type=int, required=True, help="number of this machine, from 0")
    arguments = parser.parse_args()
    queue = JobQueue(arguments.queue)
    end_with_agent()
    rank = arguments.node_rank * int(os.environ["LOCAL_WORLD_SIZE"]) + int(os.environ["LOCAL_RANK"])
    if rank == 0:
        start_owner_heartbeat(queue)
    queue.announce(rank)
    serve(queue, rank)


if __name__ == "__main__":
    sys.exit(main())
