"""Where a Prefect server of ours listens."""

import ipaddress
import socket
from dataclasses import dataclass

from artifacts.errors import BadInputError

HOST = "127.0.0.1"
"""Reached by programs of this machine only."""


@dataclass(frozen=True)
class Place:
    """Where a server listens.

    Attributes:
        host: The name or address that the user gave.
        address: The address of this machine that it stands for.
        family: The kind of address.
    """

    host: str
    address: str
    family: socket.AddressFamily

    @classmethod
    def of(cls, host: str) -> "Place":
        """Looks a name up.

        Raises:
            BadInputError: It stands for no address.
        """
        try:
            family, _, _, _, found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise BadInputError(f"--host {host}", "is no host", "a name or an address of this machine", HOST) from error
        return cls(host, str(found[0]), family)

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback

    @property
    def called(self) -> str:
        """The host in an address that clients of this machine use."""
        if ipaddress.ip_address(self.address.partition("%")[0]).is_unspecified:
            return HOST
        return f"[{self.host}]" if ":" in self.host else self.host
