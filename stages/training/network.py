"""Where the trainer's processes listen: on the loopback interface, or with several machines on the one between them.

No port is open for the processes to find one another: they do that through a file in the gang's folder, because torch's
own store for it listens on every interface and takes anything from anybody. The ports that remain are those over which
gloo and NCCL send tensors.
"""

import socket
from dataclasses import dataclass
from ipaddress import ip_address

from artifacts.errors import BadInputError, TransientError
from stages.training.job import TrainHardware, is_public

LOOPBACK = "lo"
_ANY_PORT = 9
"""Of the discard protocol; nothing is sent there."""


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine.

    Attributes:
        name: As the kernel names it.
        addresses: All that it has, IPv4 and IPv6.
    """

    name: str
    addresses: tuple[str, ...]


def network_environment(hardware: TrainHardware) -> dict[str, str]:
    """Environment variables that tell gloo and NCCL on which interface to listen.

    With one machine that is the loopback interface; with several the one over which this machine reaches the address in
    `rendezvous`, and on the first machine the one that has this address.

    Raises:
        BadInputError: The address is of no use, or public and `rendezvous_public` is not set.
        TransientError: Its name cannot be looked up at the moment.
    """
    name = LOOPBACK
    if hardware.nodes > 1 and (host := hardware.rendezvous_host):
        interface, address = interface_towards(host)
        if not hardware.rendezvous_public:
            _refuse_public(host, interface, address)
        name = interface.name
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}  # "=": that name, not all that begin so


def interface_towards(host: str) -> tuple[Interface, str]:
    """The interface over which this machine reaches a host, and the host's address.

    Args:
        host: Name or address.

    Raises:
        BadInputError: The host is unknown, or there is no way to it.
        TransientError: Its name cannot be looked up at the moment.
    """
    where, expected = f"trainer.rendezvous {host!r}", "a name or an address of the first machine"
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # which sends nothing, but chooses the way
            own = _plain(probe.getsockname()[0])
    except socket.gaierror as error:
        failure = TransientError if error.errno == socket.EAI_AGAIN else BadInputError
        raise failure(where, f"cannot be looked up ({error.strerror})", expected, "check its name") from error
    except UnicodeError as error:
        raise BadInputError(where, "not a host's name", expected) from error
    except OSError as error:
        raise BadInputError(where, f"not reachable ({error.strerror})", expected, "check the network") from error
    address = _plain(str(target[0]))
    remedy = "let the name lead to the address that the other machines use, also on the first one"
    if ip_address(address).is_loopback and host not in (address, "localhost"):
        raise BadInputError(where, f"leads to {address}, which no other machine reaches", expected, remedy)
    for interface in _interfaces():
        if own in interface.addresses:
            return interface, address
    raise BadInputError(where, f"leads over {own}, which no interface of this machine has", expected, remedy)


def _interfaces() -> list[Interface]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return [
        Interface(name, tuple(_plain(entry.address) for entry in entries if entry.family in families))
        for name, entries in psutil.net_if_addrs().items()
    ]


def _plain(address: str) -> str:
    """An address without the interface that follows link-local ones."""
    return address.partition("%")[0]


def _refuse_public(host: str, interface: Interface, address: str) -> None:
    for each in (address, *interface.addresses):
        if is_public(each):
            found = f"{each} is a public address" + (f", of interface {interface.name}" if each != address else "")
            raise BadInputError(
                f"trainer.rendezvous {host!r}",
                found,
                "an address on a private network: whoever reaches the trainer's ports can disturb the training",
                "name one, or firewall the ports as the RUNBOOK says and set trainer.rendezvous_public = true",
            )
