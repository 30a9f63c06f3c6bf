"""How a Prefect API is reached: its address without a password, its auth string, and files that only we can read.

An auth string has the form USER:PASSWORD. Prefect's server takes it from PREFECT_SERVER_API_AUTH_STRING, its clients
from PREFECT_API_AUTH_STRING.
"""

import base64
import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from artifacts.errors import BadInputError, DeerstalkerError

if TYPE_CHECKING:
    import httpx

CLIENT_VARIABLE = "PREFECT_API_AUTH_STRING"
SERVER_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING"
ELSEWHERE_TIMEOUT_S = 30.0
_EXPECTED = "http://HOST:PORT/api"
_REFUSED = (401, 403)
_PASSING = (502, 503, 504)
"""Statuses of a server, or of a proxy in front of one, that is starting."""


def masked(address: str) -> str:
    """An address, or any text that was given as one, with `***` in place of user and password."""
    return re.sub(r"^([A-Za-z][\w+.-]*://)?.*@", r"\1***@", address, flags=re.DOTALL)


def parse_server(text: str) -> tuple[str, str | None]:
    """Splits the value of `--server`.

    Returns:
        The address of the API, without user and password and without a slash at its end; and its auth string, None
        where the text holds none.

    Raises:
        BadInputError: It is no address of an API.
    """
    import httpx

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise _no_address(text, "is no address") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise _no_address(text, "is no address of a server")
    if url.query or url.fragment or (url.port is not None and not 0 < url.port < 1 << 16):
        raise _no_address(text, "is no address of an API")
    auth = unquote(url.userinfo.decode("ascii")) or None
    if auth is not None and not _is_auth_string(auth):
        raise _no_address(text, "holds a user or a password that cannot be sent")
    return str(url.copy_with(userinfo=b"")).rstrip("/"), auth


def _no_address(text: str, found: str) -> BadInputError:
    return BadInputError(f"--server {masked(text)!r}", found, _EXPECTED, "name the API of a Prefect server")


def wait_for_server_elsewhere(url: str, auth: str | None) -> None:
    """Waits until a Prefect API that somebody else runs answers, and lets us in.

    Args:
        url: Its address, without a password.

    Raises:
        BadInputError: There is no such host, or what answers is no Prefect API, or asks for another auth string.
        DeerstalkerError: Nothing answers within `ELSEWHERE_TIMEOUT_S`.
    """
    import httpx

    where, parsed = f"--server {url}", httpx.URL(url)
    try:
        socket.getaddrinfo(parsed.host, parsed.port)
    except (OSError, UnicodeError) as error:
        raise BadInputError(where, f"no host is called {parsed.host}", _EXPECTED, "correct the name") from error
    deadline = time.monotonic() + ELSEWHERE_TIMEOUT_S
    with httpx.Client(base_url=url, headers=auth_headers(auth, os.environ), timeout=5.0, trust_env=False) as client:
        while (health := _get(client, "/health")) is None or health.status_code in _PASSING:
            if time.monotonic() > deadline:
                limit = f"no answer within {ELSEWHERE_TIMEOUT_S:.0f} s"
                raise DeerstalkerError(where, limit, "a Prefect API", "is it running?")
            time.sleep(0.2)
        version = _get(client, "/admin/version") if health.is_success else None
    refused = next((one.status_code for one in (health, version) if one and one.status_code in _REFUSED), None)
    if refused:
        remedy = f"set {CLIENT_VARIABLE}=USER:PASSWORD"
        raise BadInputError(where, f"refuses us (HTTP {refused})", "its auth string", remedy)
    if not health.is_success or health.text.strip() != "true":
        raise BadInputError(
            where, f"answers, but is no Prefect API (HTTP {health.status_code})", _EXPECTED, "add /api?"
        )


def _get(client: "httpx.Client", path: str) -> "httpx.Response | None":
    import httpx

    try:
        return client.get(path)
    except httpx.TransportError:
        return None


def auth_headers(auth: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Headers with which Prefect's clients ask an API.

    Args:
        auth: Its auth string; None takes the key of PREFECT_API_KEY, if any.
    """
    if auth:
        return {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"} if (key := environment.get("PREFECT_API_KEY")) else {}


def new_auth_string() -> str:
    """An auth string that nobody can guess: 192 random bits."""
    return f"deerstalker:{secrets.token_hex(24)}"


def read_auth_string(path: Path) -> str:
    """The auth string in a file.

    Raises:
        BadInputError: It cannot be read, or holds none.
    """
    try:
        auth = path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeError) as error:
        raise BadInputError(str(path), "cannot be read", "an auth string", "`deerstalker down`, then `up`") from error
    if not _is_auth_string(auth):
        raise BadInputError(str(path), "holds no auth string", "USER:PASSWORD in one line", "remove it")
    return auth


def _is_auth_string(text: str) -> bool:
    return bool(text) and text.isprintable()


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read (mode 0600), whole or not at all."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(fresh, "x", encoding="utf-8", opener=private) as file:
            file.write(text)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def private(path: str, flags: int) -> int:
    """An opener for `open`: the file can be read by its owner only, also where it was there before."""
    descriptor = os.open(path, flags, 0o600)
    with suppress(PermissionError):  # another's file: it stays as it is
        os.fchmod(descriptor, 0o600)
    return descriptor


def private_folder(path: Path) -> None:
    """Makes a folder that only its owner can enter (mode 0700), unless it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
