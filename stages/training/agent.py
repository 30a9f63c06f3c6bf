"""torchrun's agent on one machine, which starts that machine's worker processes."""

import os
import sys
from collections.abc import Mapping

from stages.guarded import GuardedProcess
from stages.training.job import TrainHardware
from stages.training.spool import Spool

_GIB = 2**30
_ALLOCATOR = {"hugetlb": 1, "mmap_threshold": 64 * _GIB, "trim_threshold": 64 * _GIB, "top_pad": _GIB // 4}
"""Settings of glibc's malloc. By default it hands tensors back to the kernel as soon as they are freed, and the kernel
clears the same pages again for the next ones: 340,000 page faults a step of SmolLM2-135M, 8% of its time."""


def start_agent(spool: Spool, hardware: TrainHardware, node_rank: int, network: Mapping[str, str]) -> GuardedProcess:
    """Starts the workers of one machine; they end with this process.

    Each machine has an agent of its own that knows of no other: the workers of all machines meet through the spool.

    Args:
        spool: Folder that all machines see.
        hardware: Layout of the whole gang.
        node_rank: Number of this machine, from 0.
        network: Says where the workers listen, see `stages.training.network`.
    """
    scratch = spool.folder / f"agent-{node_rank}"
    # torchrun's own store listens on every interface, whatever address it is given, and the agent unpickles what
    # anybody has put there. So its rendezvous is a file, and the second store, for the workers, is not started.
    # The address is named because torchrun else looks up this machine's own name, which waits where nothing answers.
    meeting = [
        "--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file",
        f"--rdzv-endpoint={spool.agent_file(node_rank)}", f"--rdzv-id={spool.folder.name}", "--local-addr=127.0.0.1",
    ]  # fmt: skip
    command = [
        sys.executable, "-P", "-m", "torch.distributed.run", *meeting, "--max-restarts=0", f"--log-dir={scratch}",
        f"--nproc-per-node={hardware.processes}", "-m", "stages.training.worker",
        f"--spool={spool.folder}", f"--node-rank={node_rank}",
    ]  # fmt: skip
    threads = hardware.threads or max(1, len(os.sched_getaffinity(0)) // hardware.processes)
    environment = worker_environment(threads) | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **network}
    for name in [name for name in environment if name.startswith("PET_")]:
        del environment[name]  # defaults of torchrun's options, which some clusters set for a launch of their own
    with spool.log_file(node_rank).open("wb") as log:
        return GuardedProcess(command, scratch, log, environment)


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of worker processes: this process's, and what makes `threads` threads compute well."""
    environment = {
        # Threads that wait spin for some 10 us, then sleep. Longer, they take the core from those they wait for when
        # anything else runs on the machine (by libgomp's default 84 s instead of 5 for a small model); not at all, and
        # each of the thousands of short waits of a step wakes a core (twice the time for a small model).
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "1000",
        "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in _ALLOCATOR.items()),
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",  # a torch.py in the folder of whoever started the run is not ours to execute
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile torch anew
    return environment
