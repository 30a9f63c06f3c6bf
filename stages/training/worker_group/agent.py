"""Starts torchrun's agent on one machine, which starts that machine's worker processes."""

import os
import sys
from collections.abc import Mapping

from stages.processes.cgroups import usable_cores
from stages.processes.guarded import GuardedProcess
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue

AGENT = "torch.distributed.run"
"""The module of torchrun's agent."""
_GIB = 2**30
_ALLOCATOR = {"hugetlb": 1, "mmap_threshold": 64 * _GIB, "trim_threshold": 64 * _GIB, "top_pad": _GIB // 4}
"""Settings of glibc's malloc. By default malloc returns freed tensors to the kernel at once, and the kernel clears the
pages again for the next ones: 340,000 page faults per step of SmolLM2-135M, 8% of its time."""


def start_agent(queue: JobQueue, hardware: TrainHardware, node_rank: int, network: Mapping[str, str]) -> GuardedProcess:
    """Starts the workers of one machine. They end when this process ends.

    Agents of different machines do not communicate; the workers of all machines find one another through the job queue.

    Args:
        queue: Job queue, in a folder that all machines see.
        hardware: Layout of the whole worker group.
        node_rank: Number of this machine, from 0.
        network: Environment variables for gloo and NCCL, see `stages.training.worker_group.network`.
    """
    scratch = queue.folder / f"agent-{node_rank}"
    # torchrun's own store listens on every interface, whatever address it is given, and the agent unpickles anything
    # that is put there. So the rendezvous is a file, and torchrun's second store, the one for workers, is not started.
    # Without --local-addr torchrun looks up this machine's own name, and waits if no name server answers.
    rendezvous = [
        "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file",
        f"--rdzv-endpoint={queue.agent_file(node_rank)}", f"--rdzv-id={queue.folder.name}", "--local-addr=127.0.0.1",
    ]  # fmt: skip
    command = [
        sys.executable, "-P", "-m", AGENT, *rendezvous, "--max-restarts=0", f"--log-dir={scratch}",
        f"--nproc-per-node={hardware.processes}", "-m", "stages.training.worker_group.worker",
        f"--queue={queue.folder}", f"--node-rank={node_rank}",
    ]  # fmt: skip
    threads = hardware.threads or max(1, usable_cores() // hardware.processes)
    environment = worker_environment(threads) | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **network}
    for name in [name for name in environment if name.startswith("PET_")]:
        del environment[name]  # defaults of torchrun's options, which some clusters set for their own launches
    with queue.log_file(node_rank).open("wb") as log:
        return GuardedProcess(command, scratch, log, environment)


def worker_environment(threads: int) -> dict[str, str]:
    """Returns the environment of worker processes: this process's, with settings of CPU threads and malloc."""
    environment = {
        # Waiting threads spin for about 10 us, then sleep. If they spin longer and anything else runs on the machine,
        # they take the core from the threads they wait for (84 s instead of 5 for a small model with libgomp's
        # default). If they do not spin, each of the thousands of short waits in a step wakes a core (twice the time for
        # a small model).
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in _ALLOCATOR.items()),
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",  # do not import a torch.py from the current folder
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start would compile torch again
    return environment
