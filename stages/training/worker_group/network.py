"""Chooses the network interface on which the trainer's processes listen.

On one machine it is the loopback interface, on several the interface that connects them. The processes find one another
through a file in the worker group's folder, because torch's own store listens on every interface and accepts anything
from anybody. The only open ports are those over which gloo and NCCL send tensors.
"""

import socket
from dataclasses import dataclass
from ipaddress import ip_address

from artifacts.errors import BadInputError, TransientError
from stages.training.worker_group.hardware import TrainHardware, is_public

LOOPBACK = "lo"
_ANY_PORT = 9
"""Port of the discard protocol; nothing is sent to it."""


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine.

    Attributes:
        name: Name that the kernel uses.
        addresses: All its IPv4 and IPv6 addresses.
    """

    name: str
    addresses: tuple[str, ...]


def network_environment(hardware: TrainHardware) -> dict[str, str]:
    """Returns environment variables that name the interface on which gloo and NCCL listen.

    With several machines it is the interface over which this machine reaches the address in `rendezvous`; on the first
    machine, the interface with this address.

    Raises:
        BadInputError: The address is unusable, or it is public and `rendezvous_public` is not set.
        TransientError: The name cannot be resolved at the moment.
    """
    name = LOOPBACK
    if hardware.nodes > 1 and (host := hardware.rendezvous):
        interface, address = interface_towards(host)
        if not hardware.rendezvous_public:
            _refuse_public(host, interface, address)
        name = interface.name
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}  # "=" means exactly this name, not a prefix


def interface_towards(host: str) -> tuple[Interface, str]:
    """Returns the interface over which this machine reaches a host, and the address of the host.

    Args:
        host: Name or address.

    Raises:
        BadInputError: The host is unknown or not reachable.
        TransientError: The name cannot be resolved at the moment.
    """
    where, expected = f"trainer.rendezvous {host!r}", "a name or an address of the first machine"
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing, but selects the route
            own = _plain(probe.getsockname()[0])
    except socket.gaierror as error:
        failure = TransientError if error.errno == socket.EAI_AGAIN else BadInputError
        raise failure(where, f"cannot be resolved ({error.strerror})", expected, "check its name") from error
    except UnicodeError as error:
        raise BadInputError(where, "not a host's name", expected) from error
    except OSError as error:
        raise BadInputError(where, f"not reachable ({error.strerror})", expected, "check the network") from error
    address = _plain(str(target[0]))
    remedy = "let the name resolve to the address that the other machines use, on the first one too"
    if ip_address(address).is_loopback and host not in (address, "localhost"):
        raise BadInputError(where, f"resolves to {address}, which no other machine reaches", expected, remedy)
    for interface in _interfaces():
        if own in interface.addresses:
            return interface, address
    raise BadInputError(where, f"is reached from {own}, which no interface of this machine has", expected, remedy)


def _interfaces() -> list[Interface]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return [
        Interface(name, tuple(_plain(entry.address) for entry in entries if entry.family in families))
        for name, entries in psutil.net_if_addrs().items()
    ]


def _plain(address: str) -> str:
    """Returns an address without the interface suffix of link-local ones."""
    return address.partition("%")[0]


def _refuse_public(host: str, interface: Interface, address: str) -> None:
    for each in (address, *interface.addresses):
        if is_public(each):
            of_interface = f", of interface {interface.name}" if each != address else ""
            raise BadInputError(
                f"trainer.rendezvous {host!r}",
                f"{each} is a public address{of_interface}",
                "an address on a private network: anybody who reaches the trainer's ports can disturb the training",
                "name one, or firewall the ports as docs/cluster.md says and set trainer.rendezvous_public = true",
            )
