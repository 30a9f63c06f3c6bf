"""torchrun's agent on one machine: starts that machine's worker processes, and ends them."""

import os
import signal
import subprocess
import sys

from stages.training.job import TrainHardware
from stages.training.spool import Spool, process_started

STOP_LIMIT_S = 3.0


def start_agent(spool: Spool, hardware: TrainHardware, node_rank: int) -> subprocess.Popen[bytes]:
    """Starts the workers of one machine; they end with this process.

    Args:
        spool: Folder that all machines see.
        hardware: Layout of the whole gang.
        node_rank: Number of this machine, from 0.
    """
    owner = os.getpid()
    meeting = ["--standalone"]
    if hardware.nodes > 1 and hardware.rendezvous:
        host, _, port = hardware.rendezvous.rpartition(":")
        meeting = [
            f"--nnodes={hardware.nodes}", f"--node-rank={node_rank}", f"--master-addr={host}", f"--master-port={port}",
            f"--rdzv-id={spool.folder.name}",
        ]  # fmt: skip
    command = [
        sys.executable, "-m", "torch.distributed.run", *meeting, "--max-restarts=0",
        f"--nproc-per-node={hardware.processes}", "-m", "stages.training.worker",
        f"--spool={spool.folder}", f"--owner-pid={owner}", f"--owner-started={process_started(owner)}",
    ]  # fmt: skip
    threads = hardware.threads or max(1, len(os.sched_getaffinity(0)) // hardware.processes)
    environment = {
        # Threads that wait must sleep: spinning ones take the core from those they wait for when anything else
        # runs on the machine (seen: 84 s instead of 5 s for a small model on two busy cores).
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile torch anew
    with spool.log_file(node_rank).open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def end_agent(agent: subprocess.Popen[bytes], spool: Spool, *, at_once: bool = False) -> None:
    """Ends an agent and the workers on this machine, within a few seconds, or `at_once`."""
    for pid in spool.announced():
        _signal(pid, signal.SIGKILL)
    if agent.poll() is None:
        _signal_group(agent.pid, signal.SIGKILL if at_once else signal.SIGTERM)
        try:
            agent.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            _signal_group(agent.pid, signal.SIGKILL)
            agent.wait()
    for pid in spool.announced():
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
