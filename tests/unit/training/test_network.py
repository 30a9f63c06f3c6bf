"""Who can reach the trainer's processes: with one machine nobody else, with several those on the network between them.

torch's own store for processes that are to meet listens on every interface and unpickles what anybody has put there.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from artifacts.errors import BadInputError
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue
from stages.training.worker_group.network import interface_towards, network_environment
from stages.training.worker_group.node import open_groups
from tests.support.hosts import Host, hosts
from tests.support.jobs import queue_folder
from tests.support.sockets import break_in, cluster_environment, listeners, outside
from tests.support.trainer_processes import command_lines
from tests.support.worker_group_on_hosts import worker_group_on


@pytest.fixture
def reachable() -> tuple[str, str]:
    """An address of this machine that others reach, and its interface."""
    if (address := outside()) is None:
        pytest.skip("this machine has no interface but loopback")
    return address


@pytest.mark.long
def test_nobody_else_reaches_a_worker_group_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: tuple[str, str]
) -> None:
    """The default tier looks at the ports of a whole run, whose group has one process (tests/flow/test_run.py)."""
    for name, value in cluster_environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "torch.py").write_text("raise SystemExit('the code of somebody else')")
    monkeypatch.chdir(tmp_path)
    with WorkerGroup(TrainHardware(compute_dtype="fp32", threads=1, processes=2), tmp_path) as group:
        group.start()
        group.wait_until_ready()
        folder = queue_folder(group)
        assert folder.stat().st_mode & 0o777 == 0o700, "what the processes meet by is theirs alone"
        pids = [pid for pid, line in command_lines() if str(folder) in line]
        assert len(pids) == 2 + 2, "guard, agent and workers"
        listening = listeners(pids)
        tried = {str(listener): break_in(reachable[0], listener.port, tmp_path / "proof") for listener in listening}
        assert set(tried.values()) <= {"refused"}, tried
        assert [str(listener) for listener in listening if not listener.on_loopback] == []


@pytest.fixture
def pair() -> Iterator[list[Host]]:
    try:
        with hosts("first", "second") as made:
            yield made
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here ({error}); this needs root and iproute2")


@pytest.mark.long
def test_a_worker_group_on_two_hosts_listens_on_the_network_between_them(tmp_path: Path, pair: list[Host]) -> None:
    with worker_group_on(pair, tmp_path) as listeners_of:
        for host in pair:
            assert listeners_of[host.name], "gloo has a port on each"
            for listener in listeners_of[host.name]:
                assert listener.address == host.address, str(listener)
                assert "stages.training.worker_group.worker" in listener.program, str(listener)


def test_a_name_that_leads_a_machine_to_itself_is_refused(pair: list[Host]) -> None:
    """As Debian writes a machine's own name into /etc/hosts: the others would look for it at their own loopback."""
    program = f"from stages.training.worker_group.network import interface_towards; interface_towards({pair[0].name!r})"
    command = pair[0].command([sys.executable, "-c", program])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "BadInputError" in done.stderr and "resolves to 127.0.0.1, which no other machine reaches" in done.stderr


def test_the_interface_is_the_one_towards_the_first_machine(reachable: tuple[str, str]) -> None:
    address, name = reachable
    shared = Path("shared")
    for host, interface in (("127.0.0.1", "lo"), ("localhost", "lo"), (address, name)):
        environment = network_environment(TrainHardware(nodes=2, rendezvous=host, shared_dir=shared))
        assert environment == {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    alone = network_environment(TrainHardware(rendezvous=address))
    assert alone == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("a..b", "not a host's name"),
        ("255.255.255.255", "not reachable"),
    ],
)
def test_a_host_that_is_of_no_use_is_named(host: str, problem: str) -> None:
    with pytest.raises(BadInputError, match=problem) as refusal:
        interface_towards(host)
    assert refusal.value.where == f"trainer.rendezvous {host!r}" and refusal.value.remedy + refusal.value.expected


def test_a_public_address_is_refused_unless_the_profile_says_so() -> None:
    there = {"nodes": 2, "rendezvous": "8.8.8.8", "shared_dir": Path("shared")}
    with pytest.raises(ValidationError, match=r"8\.8\.8\.8 is a public address.*rendezvous_public = true"):
        TrainHardware.model_validate(there)
    assert TrainHardware.model_validate({**there, "rendezvous_public": True}).rendezvous == "8.8.8.8"
    private = ("10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "trainer-0.internal")
    for host in private:
        TrainHardware.model_validate({**there, "rendezvous": host})


ON_A_PUBLIC_INTERFACE = """
import sys
from pathlib import Path
from artifacts.errors import BadInputError
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.network import network_environment
told = {"nodes": 2, "rendezvous": "localhost", "shared_dir": Path("shared")}
print(network_environment(TrainHardware(**told, rendezvous_public=True))["GLOO_SOCKET_IFNAME"])
try:
    network_environment(TrainHardware(**told))
except BadInputError as error:
    print(error)
"""


def test_a_private_name_of_an_interface_with_a_public_address_is_refused() -> None:
    """In a network of its own, whose loopback interface has a public address as well."""
    setup = 'ip link set lo up && ip addr add 9.9.9.9/32 dev lo && exec "$@"'
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", setup, "sh", sys.executable]
    done = subprocess.run([*command, "-c", "pass"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no network namespaces here: {done.stderr.decode()}")
    done = subprocess.run([*command, "-c", ON_A_PUBLIC_INTERFACE], capture_output=True, text=True, check=True)
    interface, refusal = done.stdout.splitlines()
    assert interface == "lo"
    assert "9.9.9.9 is a public address, of interface lo" in refusal and "rendezvous_public = true" in refusal


STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_a_port_on_every_interface_is_seen_and_answers(tmp_path: Path, reachable: tuple[str, str]) -> None:
    """The tests above look: they would see such a port, and get in."""
    with subprocess.Popen([sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdin is not None
        server.stdout.readline()
        (listener,) = listeners([server.pid])
        assert not listener.on_loopback, "though it was told an address"
        assert break_in(reachable[0], listener.port, tmp_path / "proof") == "answered"
        server.stdin.close()


def test_a_further_machine_says_why_it_does_not_join(tmp_path: Path) -> None:
    """The group's owner may have a way there."""
    queue = JobQueue(tmp_path / "group-1")
    queue.folder.mkdir(mode=0o700)
    queue.write_hardware(TrainHardware(nodes=2, rendezvous="255.255.255.255", shared_dir=tmp_path))
    command = [sys.executable, "-u", "-m", "stages.training.worker_group.node", str(tmp_path), "--node-rank", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert "joining" in node.stdout.readline()
            assert "did not join: trainer.rendezvous '255.255.255.255': not reachable" in node.stdout.readline()
            assert node.poll() is None, "it waits for the next group"
        finally:
            node.kill()


def test_a_further_machine_that_looks_while_the_layout_is_written_reads_a_whole_one(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    queue.write_hardware(TrainHardware(threads=1))
    with (tmp_path / "hardware.json").open() as early:
        queue.write_hardware(TrainHardware(threads=2))
        assert TrainHardware.model_validate_json(early.read()).threads == 1
    assert queue.hardware().threads == 2 and [path.name for path in tmp_path.iterdir()] == ["hardware.json"]


def test_a_further_machine_passes_over_groups_that_others_can_write_to(tmp_path: Path) -> None:
    """They would have it run what they like."""
    for name in ("group-own", "group-open", "group-elsewhere"):
        folder = tmp_path / name if name != "group-elsewhere" else tmp_path / "elsewhere"
        folder.mkdir(mode=0o700)
        JobQueue(folder).write_hardware(TrainHardware())
    (tmp_path / "group-open").chmod(0o777)
    (tmp_path / "group-elsewhere").symlink_to(tmp_path / "elsewhere")
    if os.geteuid() == 0:
        foreign = JobQueue(tmp_path / "group-foreign")
        foreign.folder.mkdir(mode=0o700)
        foreign.write_hardware(TrainHardware())
        os.chown(foreign.folder, 12345, 12345)
    assert [queue.folder.name for queue in open_groups(tmp_path)] == ["group-own"]
