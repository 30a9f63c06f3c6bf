"""torchrun's agent on one machine, which starts that machine's worker processes."""

import os
import sys

from stages.guarded import GuardedProcess
from stages.training.job import TrainHardware
from stages.training.spool import Spool


def start_agent(spool: Spool, hardware: TrainHardware, node_rank: int) -> GuardedProcess:
    """Starts the workers of one machine; they end with this process.

    Args:
        spool: Folder that all machines see.
        hardware: Layout of the whole gang.
        node_rank: Number of this machine, from 0.
    """
    # Named, because torchrun and gloo else look up this machine's own name, which waits where nothing answers.
    meeting = ["--standalone", "--local-addr=127.0.0.1"]
    interface = {"GLOO_SOCKET_IFNAME": "lo"}
    if hardware.nodes > 1 and hardware.rendezvous:
        host, _, port = hardware.rendezvous.rpartition(":")
        meeting = [
            f"--nnodes={hardware.nodes}", f"--node-rank={node_rank}", f"--master-addr={host}", f"--master-port={port}",
            f"--rdzv-id={spool.folder.name}",
        ]  # fmt: skip
        interface = {}
    scratch = spool.folder / f"agent-{node_rank}"
    command = [
        sys.executable, "-m", "torch.distributed.run", *meeting, "--max-restarts=0", f"--log-dir={scratch}",
        f"--nproc-per-node={hardware.processes}", "-m", "stages.training.worker",
        f"--spool={spool.folder}",
    ]  # fmt: skip
    threads = hardware.threads or max(1, len(os.sched_getaffinity(0)) // hardware.processes)
    environment = {
        # Threads that wait must sleep: spinning ones take the core from those they wait for when anything else
        # runs on the machine (seen: 84 s instead of 5 s for a small model on two busy cores).
        "OMP_WAIT_POLICY": "PASSIVE",
        **interface,
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile torch anew
    with spool.log_file(node_rank).open("wb") as log:
        return GuardedProcess(command, scratch, log, environment)
