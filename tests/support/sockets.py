"""The TCP ports on which processes of a test listen, as the kernel lists them, and a client that tries to get in."""

import ipaddress
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support.waiting import wait_until

_LISTENS = "0A"
LOOK_INTERVAL_S = 0.5
REFUSED_WITHIN_S = 3.0
EXECUTED_WITHIN_S = 20.0
"""Limit of the attack, mostly for importing torch; it is needed only if the port answers."""
TAKEN_WITHIN_S = 2.0


@dataclass(frozen=True, order=True)
class Listener:
    """A TCP port on which a process listens.

    Attributes:
        program: Its command line.
        address: Where it listens; 0.0.0.0 or :: is every interface.
    """

    program: str
    address: str
    port: int
    pid: int

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        address = ipaddress.ip_address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback

    @property
    def short(self) -> str:
        """The program without its path and its own arguments."""
        words = [word for word in self.program.split() if not word.startswith("-")]
        return next((word.rpartition("/")[2] for word in words[1:]), self.program)

    def __str__(self) -> str:
        return f"{self.address}:{self.port} of {self.program[-200:]} ({self.pid})"


def listeners(pids: Iterable[int]) -> set[Listener]:
    """Ports on which processes listen; those of a process in another network namespace are the ones there."""
    found: set[Listener] = set()
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            held = {_target(entry) for entry in (folder / "fd").iterdir()}
            program = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(folder / "net" / name)]
        except OSError:
            continue
        for row in rows:
            if row[3] == _LISTENS and f"socket:[{row[9]}]" in held:
                address, port = _address(row[1])
                found.add(Listener(program, address, port, pid))
    return found


def with_descendants(pids: Iterable[int]) -> set[int]:
    """Returns the ids of processes and of all their descendants."""
    parents = {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return found


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:] if path.exists() else []


def _address(text: str) -> tuple[str, int]:
    """An address as proc(5) writes it: words of 32 bits in the machine's byte order, then the port."""
    words, port = text.split(":")
    raw = b"".join(bytes.fromhex(words[start : start + 8])[::-1] for start in range(0, len(words), 8))
    return str(ipaddress.ip_address(raw)), int(port, 16)


class SocketWatch:
    """Notes every port on which processes and their descendants listen while the block runs.

    Args:
        pids: Returns the processes; called at each look. A search by variable misses vLLM's processes, which write
            their titles over their environment, but finds their parents.
    """

    def __init__(self, pids: Callable[[], Collection[int]]) -> None:
        self.seen: set[Listener] = set()
        self._pids, self._over = pids, threading.Event()
        self._thread = threading.Thread(target=self._look, name="socket-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def exposed(self) -> list[str]:
        """Ports that other machines could reach."""
        return [str(listener) for listener in sorted(self.seen) if not listener.on_loopback]

    def _look(self) -> None:
        while not self._over.wait(LOOK_INTERVAL_S):
            self.seen |= listeners(with_descendants(self._pids()))


def outside() -> tuple[str, str] | None:
    """An IPv4 address by which other machines reach this one, and its interface; None where there is no network."""
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET and not ipaddress.ip_address(entry.address).is_loopback:
                return entry.address, name
    return None


def cluster_environment() -> dict[str, str]:
    """Returns environment variables of a machine in a cluster, which name the interface to the other machines."""
    return {"GLOO_SOCKET_IFNAME": found[1], "PET_STANDALONE": "1"} if (found := outside()) else {}


_POISON = """
import base64, os, pickle, sys
from datetime import timedelta
import torch.distributed as dist

class Payload:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[3]}",)

pickled = base64.b64encode(pickle.dumps(Payload())).decode()
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), wait_for_workers=False, timeout=timedelta(seconds=3))
for key in store.list_keys():
    store.set(str(key), pickled)
"""


def break_in(address: str, port: int, proof: Path) -> str:
    """Connects from outside and leaves a pickle under every key of torch's store.

    Args:
        proof: A file that does not exist; a process that unpickles the value creates it.

    Returns:
        "refused"; "answered"; or "executed", if a process unpickled the value.
    """
    try:
        socket.create_connection((address, port), timeout=REFUSED_WITHIN_S).close()
    except OSError:
        return "refused"
    with suppress(subprocess.TimeoutExpired, AssertionError):  # no such store, or nobody takes the bait
        command = [sys.executable, "-c", _POISON, address, str(port), str(proof)]
        subprocess.run(command, timeout=EXECUTED_WITHIN_S, capture_output=True, check=False)
        wait_until(proof.exists, TAKEN_WITHIN_S)
    return "executed" if proof.exists() else "answered"
