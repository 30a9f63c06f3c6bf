"""ASGI middleware of the local Prefect server that refuses requests by web pages of other origins.

Prefect's server answers any page in a browser on this machine, and a page could deploy programs that the worker runs.
CORS only hides replies from a page; the server would still act on its requests. The middleware refuses them.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ORIGINS_VARIABLES = ("PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS", "PREFECT_SERVER_CORS_ALLOWED_ORIGINS")
"""Variables of Prefect's two settings of allowed origins; the first one takes precedence."""

_HOST = re.compile(r"(\[[0-9a-f:.%]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?")
_FOREIGN_SITES = ("cross-site", "same-site")
"""Values of Sec-Fetch-Site; another port of the same machine is "same-site"."""
_MISDIRECTED, _FORBIDDEN, _POLICY_VIOLATION = 421, 403, 1008


@dataclass(frozen=True)
class OwnNames:
    """Host names and origins that a server accepts.

    Attributes:
        hosts: Names and addresses accepted in a Host header, in lower case, IPv6 in brackets, without a port.
        origins: Origins whose pages may use the server, besides pages that the same host serves.
        any_address: Whether a Host header may be any IP address. That is safe, because DNS rebinding points a foreign
            name at this machine, not an address.
    """

    hosts: frozenset[str]
    origins: frozenset[str]
    any_address: bool = False

    def is_own_host(self, header: str) -> bool:
        """Whether a Host header names this server."""
        match = _HOST.fullmatch(header.lower())
        return match is not None and (match[1] in self.hosts or (self.any_address and _is_address(match[1])))

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Whether an Origin header belongs to one of this server's pages.

        Args:
            host: The Host header of the same request, which names this server.
        """
        origin, host = origin.lower(), host.lower()
        return origin in self.origins or origin in (f"http://{host}", f"https://{host}")


def own_names(address: str, port: int, name: str, environment: Mapping[str, str]) -> OwnNames:
    """Returns the host names and origins that a server accepts.

    Args:
        address: IP address on which the server listens.
        port: Its port.
        name: Host name or address that the user gave; empty for the loopback address.
        environment: Variables of the process; the origins in `ORIGINS_VARIABLES` are accepted too, except `*`.
    """
    hosts = {"localhost", _bracketed(address)}
    origins = {f"http://{host}:{port}" for host in hosts}
    loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if not loopback:
        hosts |= {"127.0.0.1", "[::1]", socket.gethostname().lower(), socket.getfqdn().lower()}
    if name:
        hosts.add(_bracketed(name.lower()))
    for origin in _allowed_by_user(environment):
        origins.add(origin)
        if match := _HOST.fullmatch(origin.partition("://")[2]):
            hosts.add(match[1])
    return OwnNames(frozenset(hosts), frozenset(origins), any_address=not loopback)


class OwnPagesOnly:
    """An ASGI application that passes only requests from its own pages and from programs, over HTTP and WebSockets.

    It refuses a foreign Host header (421) and all requests by pages of other origins (403), except links to the
    server's pages. It recognises pages by the headers Origin and Sec-Fetch-Site, which only browsers send.

    Args:
        application: The server.
        names: The host names and origins that it accepts.
    """

    def __init__(self, application: ASGIApp, names: OwnNames) -> None:
        self._application, self._names = application, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._application(scope, receive, _unframed(send))
        elif scope["type"] == "http":
            await _refuse(send, *refusal)
        else:  # the connection is not accepted yet: uvicorn answers the handshake with 403
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Returns the HTTP status and the reason of a refusal; None if the request is accepted."""
        hosts, origins = _header(scope, b"host"), _header(scope, b"origin")
        if len(hosts) != 1 or not self._names.is_own_host(hosts[0]):
            return (
                _MISDIRECTED,
                "This server does not accept this Host header; see PREFECT_SERVER_CORS_ALLOWED_ORIGINS "
                "in docs/operate.md.",
            )
        if any(not self._names.is_own_origin(origin, hosts[0]) for origin in origins):
            return _FORBIDDEN, "Pages of other origins may not use this server."
        if not origins and _header(scope, b"sec-fetch-site") and _foreign_page(scope):
            return _FORBIDDEN, "Pages of other origins may not use this server."
        return None


def _foreign_page(scope: Scope) -> bool:
    """Whether a page of another origin sent the request, other than by a link to a page of the server."""
    if not any(site in _FOREIGN_SITES for site in _header(scope, b"sec-fetch-site")):
        return False
    link = _header(scope, b"sec-fetch-mode") == ["navigate"] and _header(scope, b"sec-fetch-dest") == ["document"]
    return not (link and scope.get("method") in ("GET", "HEAD"))


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _unframed(send: Send) -> Send:
    """Returns a `send` that adds a header that keeps pages of other origins from framing the response."""

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-frame-options", b"SAMEORIGIN")]
        await send(message)

    return send_with_header


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


def _allowed_by_user(environment: Mapping[str, str]) -> list[str]:
    listed = next((environment[name] for name in ORIGINS_VARIABLES if environment.get(name)), "")
    origins = (origin.strip().rstrip("/").lower() for origin in listed.split(","))
    return [origin for origin in origins if origin and origin != "*"]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True
