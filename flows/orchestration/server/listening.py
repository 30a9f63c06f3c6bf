"""The address on which a local Prefect server listens."""

import ipaddress
import socket
from dataclasses import dataclass

from artifacts.errors import BadInputError

HOST = "127.0.0.1"
"""The default; only programs of this machine can reach it."""


@dataclass(frozen=True)
class ListenAddress:
    """An address on which a server listens.

    Attributes:
        host: Name or address that the user gave.
        address: The IP address of `host`.
        family: Address family (IPv4 or IPv6).
    """

    host: str
    address: str
    family: socket.AddressFamily

    @classmethod
    def of(cls, host: str) -> "ListenAddress":
        """Returns the address of a host name; an empty name is the loopback address.

        Raises:
            BadInputError: The name has no address.
        """
        try:
            family, _, _, _, address = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise BadInputError(
                f"--host {host}", "not a known host", "a name or an address of this machine", HOST
            ) from error
        return cls(host, str(address[0]), family)

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine can reach it."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback

    @property
    def url_host(self) -> str:
        """The host name in the URL that clients of this machine use."""
        if ipaddress.ip_address(self.address.partition("%")[0]).is_unspecified:
            return HOST
        return f"[{self.host}]" if ":" in self.host else self.host
