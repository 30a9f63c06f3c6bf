"""Simulated machines: network namespaces on a bridge, whose cables can be pulled. Needs root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

GATEWAY = "10.77.0.1"
"""Address of this machine on the bridge, which has no other interface of this machine."""
_ETC = Path("/etc/netns")


@dataclass(frozen=True)
class Host:
    """A namespace with a loopback and one cable.

    Attributes:
        name: Its host name, also for the programs on it.
        cable: The bridge's end of its cable.
        address: Its address on the bridge.
    """

    name: str
    namespace: str
    cable: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns a command line that runs a command on this host."""
        inside = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name, *words]
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", *inside]

    def cut(self) -> None:
        """Pulls the cable."""
        _ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        """Plugs it in again."""
        _ip("link", "set", self.cable, "up")


@contextmanager
def hosts(*names: str) -> Generator[list[Host]]:
    """Yields hosts that reach one another, and this machine at `GATEWAY`.

    Raises:
        CalledProcessError, FileNotFoundError: Namespaces are refused here, or there is no `ip`.
    """
    bridge = f"ds{os.getpid()}"
    made: list[Host] = []
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{GATEWAY}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(names, start=2):
            host = Host(name, f"{bridge}-{name}", f"{bridge}n{number}", f"{GATEWAY[:-1]}{number}")
            _ip("netns", "add", host.namespace)
            stack.callback(_ip, "netns", "del", host.namespace)
            own = _ETC / host.namespace  # laid over /etc by `ip netns exec`, so that a host resolves its own name
            own.mkdir(parents=True)
            stack.callback(shutil.rmtree, own)
            (own / "hosts").write_text(f"127.0.0.1 localhost {name}\n")
            _ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _ip("link", "set", host.cable, "master", bridge, "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", device, "up")
            made.append(host)
        yield made


def require_hosts() -> None:
    """Exits the program if this machine cannot make hosts."""
    try:
        with hosts("probe"):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"SKIPPED: no network namespaces here ({error}); this needs root and iproute2")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
