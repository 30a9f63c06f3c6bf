"""A worker group with a process on each of several hosts (see `tests/support/hosts.py`), for a with block."""

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.hosts import Host
from tests.support.processes import marked
from tests.support.sockets import Listener, listeners

ROOT = Path(__file__).parents[2]
MARK = "DEERSTALKER_TEST_WORKER_GROUP"
OWNER = """
import sys
from pathlib import Path
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
hardware = TrainHardware.model_validate_json(sys.argv[1])
with WorkerGroup(hardware, hardware.shared_dir) as group:
    group.start()
    group.wait_until_ready()
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def worker_group_on(hosts: Sequence[Host], folder: Path) -> Generator[dict[str, set[Listener]]]:
    """Starts the worker group, and yields the ports on which it listens, by host name.

    Args:
        folder: Empty; all hosts see it.

    Raises:
        AssertionError: It does not start.
    """
    from stages.training.worker_group.hardware import TrainHardware

    shared = folder / "shared"
    hardware = TrainHardware(
        compute_dtype="fp32", threads=1, nodes=len(hosts), rendezvous=hosts[0].address, shared_dir=shared
    )
    words = [[sys.executable, "-c", OWNER, hardware.model_dump_json()]]
    node = [sys.executable, "-m", "stages.training.worker_group.node", str(shared), "--node-rank"]
    words += [[*node, str(rank)] for rank in range(1, len(hosts))]
    log = folder / "group.log"
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        processes: list[subprocess.Popen[bytes]] = []
        for host, command in zip(hosts, words, strict=True):
            mark = ["env", f"{MARK}={folder}/{host.name}"]
            process = subprocess.Popen(
                host.command([*mark, *command]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if not processes else output,
                stderr=output,
                cwd=ROOT,
            )
            stack.callback(_end, process)
            processes.append(process)
        owner = processes[0]
        assert owner.stdout is not None and owner.stdin is not None
        assert owner.stdout.readline() == b"ready\n", log.read_text()
        yield {host.name: listeners(marked(MARK, f"{folder}/{host.name}")) for host in hosts}
        owner.stdin.close()
        owner.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
