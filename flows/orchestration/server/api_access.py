"""Addresses and auth strings of Prefect APIs, and files that only their owner can read.

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
from artifacts.local.input_files import (
    LARGEST_DOCUMENT,
    PLAIN_OR_GZIP,
    UnfitInputError,
    answer_content,
    read_regular,
)
from artifacts.store.unreachable import why_unreachable

if TYPE_CHECKING:
    import httpx

CLIENT_VARIABLE = "PREFECT_API_AUTH_STRING"
SERVER_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING"
EXTERNAL_TIMEOUT_S = 30.0
_EXPECTED = "http://HOST:PORT/api"
_REFUSED = (401, 403)
_TEMPORARY = (502, 503, 504)
"""HTTP statuses of a server that is starting, or of a proxy in front of it."""


def masked(address: str) -> str:
    """Returns an address with `***` in place of user and password; accepts any text, even an invalid address."""
    return re.sub(r"^([A-Za-z][\w+.-]*://)?.*@", r"\1***@", address, flags=re.DOTALL)


def parse_server(text: str) -> tuple[str, str | None]:
    """Splits the value of `--server`.

    Returns:
        The address of the API, without user, password and trailing slash; and the auth string, None if there is none.

    Raises:
        BadInputError: The text is not the address of an API.
    """
    import httpx

    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise _no_address(text, "not an address") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise _no_address(text, "not the address of a server")
    if url.query or url.fragment or (url.port is not None and not 0 < url.port < 1 << 16):
        raise _no_address(text, "not the address of an API")
    auth = unquote(url.userinfo.decode("ascii")) or None
    if auth is not None and not _is_auth_string(auth):
        raise _no_address(text, "the user or the password contains unprintable characters")
    return str(url.copy_with(userinfo=b"")).rstrip("/"), auth


def _no_address(text: str, problem: str) -> BadInputError:
    return BadInputError(f"--server {masked(text)!r}", problem, _EXPECTED, "name the API of a Prefect server")


def wait_for_external_server(url: str, auth: str | None) -> None:
    """Waits until the Prefect API that `--server` names answers and accepts the auth string.

    Args:
        url: Address of the API, without a password.
        auth: Its auth string; see `auth_headers` for None.

    Raises:
        BadInputError: There is no such host, the server is not a Prefect API, or it refuses the auth string.
        DeerstalkerError: The server does not answer within `EXTERNAL_TIMEOUT_S`, its name cannot be resolved now, or
            its certificate is refused.
    """
    import httpx

    where, parsed = f"--server {url}", httpx.URL(url)
    try:
        socket.getaddrinfo(parsed.host, parsed.port)
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
            raise DeerstalkerError(where, f"the name {parsed.host} cannot be resolved now", _EXPECTED) from error
        raise BadInputError(where, f"there is no host {parsed.host}", _EXPECTED, "correct the name") from error
    deadline = time.monotonic() + EXTERNAL_TIMEOUT_S
    headers = auth_headers(auth, os.environ)
    trusted = httpx.create_ssl_context()  # with SSL_CERT_FILE, which the client would not read
    with httpx.Client(base_url=url, headers=headers, verify=trusted, timeout=5.0, trust_env=False) as client:
        while (health := _get(client, "/health", where)) is None or health.status_code in _TEMPORARY:
            if time.monotonic() > deadline:
                limit = f"no answer within {EXTERNAL_TIMEOUT_S:.0f} s"
                raise DeerstalkerError(where, limit, "a Prefect API", "is it running?")
            time.sleep(0.2)
        version = _get(client, "/admin/version", where) if health.is_success else None
    refused = next((reply.status_code for reply in (health, version) if reply and reply.status_code in _REFUSED), None)
    if refused:
        remedy = f"set {CLIENT_VARIABLE}=USER:PASSWORD"
        raise BadInputError(where, f"refuses the request (HTTP {refused})", "its auth string", remedy)
    if not health.is_success or health.text.strip() != "true":
        raise BadInputError(
            where, f"answers, but is not a Prefect API (HTTP {health.status_code})", _EXPECTED, "add /api?"
        )


def _get(client: "httpx.Client", path: str, where: str) -> "httpx.Response | None":
    """Returns an answer; None if there is none at the moment.

    Raises:
        DeerstalkerError: The server's name cannot be resolved, or its certificate is refused.
    """
    import httpx

    try:
        return bounded_get(client, path)
    except httpx.TransportError as error:
        if reason := why_unreachable(error):
            raise DeerstalkerError(where, *reason) from error
        return None


def bounded_get(client: "httpx.Client", path: str) -> "httpx.Response":
    """Returns status and content of a response; the content is empty if it is too large, too slow or not gzip.

    Raises:
        httpx.HTTPError: The server could not be reached, or its response was cut off.
    """
    import httpx

    with client.stream("GET", path, headers=PLAIN_OR_GZIP) as answer, suppress(UnfitInputError):
        coding = answer.headers.get("Content-Encoding", "")
        content = answer_content(coding, answer.iter_bytes(), LARGEST_DOCUMENT, EXTERNAL_TIMEOUT_S)
        return httpx.Response(answer.status_code, content=content)
    return httpx.Response(answer.status_code)


def auth_headers(auth: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the authentication headers that Prefect's clients send.

    Args:
        auth: Auth string of the API; None uses PREFECT_API_KEY, if set.
    """
    if auth:
        return {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"} if (key := environment.get("PREFECT_API_KEY")) else {}


def new_auth_string() -> str:
    """Returns a new auth string with 192 random bits."""
    return f"deerstalker:{secrets.token_hex(24)}"


def read_auth_string(path: Path) -> str:
    """Returns the auth string in a file.

    Raises:
        BadInputError: The file cannot be read, or contains no auth string.
    """
    try:
        auth = read_regular(path).decode().removesuffix("\n")
    except (OSError, UnicodeError) as error:
        raise BadInputError(str(path), "cannot be read", "an auth string", "`deerstalker down`, then `up`") from error
    if not _is_auth_string(auth):
        raise BadInputError(str(path), "contains no auth string", "USER:PASSWORD in one line", "remove it")
    return auth


def _is_auth_string(text: str) -> bool:
    return bool(text) and text.isprintable()


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read (mode 0600), completely or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(draft, "x", encoding="utf-8", opener=private) as file:
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def private(path: str, flags: int) -> int:
    """Opens a file, makes it readable by its owner only, and returns its descriptor; an opener for `open`."""
    descriptor = os.open(path, flags, 0o600)
    with suppress(PermissionError):  # the file belongs to another user: leave its mode
        os.fchmod(descriptor, 0o600)
    return descriptor


def private_folder(path: Path) -> None:
    """Creates a folder that only its owner can enter (mode 0700), unless it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
