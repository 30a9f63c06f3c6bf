"""The key of an engine: its source in a flow, and the server's middleware that requires it on every path."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from artifacts.errors import BadInputError
from stages.sampling.config import EngineHardware
from stages.sampling.endpoint import Endpoint

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

KEY_VARIABLE = "VLLM_API_KEY"
"""Environment variable with the server's key. vLLM's own check, which covers only some paths, reads it too."""
OPEN_PATH = "/health"
"""Path that is answered without a key, for readiness probes. The response shows only that the server runs."""
REFUSED = (401, 403)
"""HTTP statuses with which a server refuses a key."""
_HEADER_SAFE = re.compile(r"[!-~]+")


def check(hardware: EngineHardware) -> None:
    """Checks that the key of a profile's external engines is set.

    Raises:
        BadInputError: The environment variable is missing, or its value is not allowed in a header.
    """
    external_key(hardware)


def external_key(hardware: EngineHardware) -> str:
    """Returns the key of the engines that run elsewhere; empty if the profile names none.

    Raises:
        BadInputError: The environment variable is missing, or its value is not allowed in a header.
    """
    name = hardware.api_key_env
    if name is None or not hardware.external_urls:
        return ""
    return _key_of(os.environ, name, "engine.api_key_env", "the key of the engines at engine.external_urls")


def check_server(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Checks the key of a server that is about to start.

    Raises:
        BadInputError: The environment has no usable key, or the arguments contain one.
    """
    if any(argument.replace("_", "-").startswith("--api-key") for argument in arguments):
        remedy = f"set the environment variable {KEY_VARIABLE} instead"
        raise BadInputError("--api-key", "a key among the arguments, which every process here can read", "", remedy)
    _key_of(environment, KEY_VARIABLE, "engine server", "the key that every request must carry")


def refused_key(endpoint: Endpoint, status: int) -> BadInputError:
    """Returns the error for an engine that refused the key. It names the environment variable, never the key.

    Args:
        endpoint: The engine.
        status: HTTP status, one of `REFUSED`.
    """
    where = f"engine {endpoint.address}"
    if not endpoint.api_key:
        remedy = "set engine.api_key_env of the profile to the name of the environment variable that holds the key"
        return BadInputError(where, f"HTTP {status}: it requires a key, and the profile names none", "", remedy)
    problem = f"HTTP {status}: it refuses the key of the environment variable {endpoint.key_name}"
    remedy = f"give {endpoint.key_name} the key that the server has in {KEY_VARIABLE}"
    return BadInputError(where, problem, "the key with which it was started", remedy)


def _key_of(environment: Mapping[str, str], name: str, where: str, expected: str) -> str:
    key = environment.get(name, "")
    if not key:
        problem = f"the environment variable {name} is {'empty' if name in environment else 'not set'}"
        raise BadInputError(where, problem, expected, f"set {name} where this process is started")
    if not _HEADER_SAFE.fullmatch(key):
        problem = f"the environment variable {name} holds a space, a line break or a character outside ASCII"
        raise BadInputError(where, problem, "printable ASCII characters", "make one with `openssl rand -hex 24`")
    return key


class DemandKey:
    """ASGI middleware that answers 401 to every request without the key, whatever its path and method.

    vLLM's own check (0.32) covers only the paths that begin with /v1, /v2, /inference or /cohere, and no request with
    the method OPTIONS. It leaves open the paths that load weights and call functions of the engine (`/collective_rpc`).

    Args:
        app: The application that answers requests with the key.

    Raises:
        BadInputError: The environment has no usable key.
    """

    def __init__(self, app: ASGIApp) -> None:
        key = _key_of(os.environ, KEY_VARIABLE, "engine server", "the key that every request must carry")
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request with the key on to the application; refuses any other."""
        if scope["type"] == "lifespan" or self._open(scope) or self._carries_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted, so the client sees HTTP 403
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error":"Unauthorized"}'})

    def _open(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["path"] == OPEN_PATH and scope["method"] in ("GET", "HEAD")

    def _carries_key(self, scope: Scope) -> bool:
        headers = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(headers) == 1 and hmac.compare_digest(headers[0], self._expected)
