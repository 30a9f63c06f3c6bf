"""A Prefect server with its user interface, as a user would start it, for the length of a test."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.settings.legacy import Setting

from flows.orchestration.server.api_access import auth_headers
from flows.orchestration.server.local_server import HOST, database_lock, start_server, stop_process, wait_until_healthy
from tests.support.servers import free_port

_START_TIMEOUT_S = 400.0
_BUSY_LIMIT_S = 400.0
_DRAIN_LIMIT_S = 30.0


def without_prefect() -> dict[str, str]:
    """Returns this process's environment without Prefect's variables, which belong to the user who runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}


@contextmanager
def prefect_server(folder: Path, host: str = "127.0.0.1") -> Generator[str]:
    """Starts a server on this machine, its database and pages in `folder`, and yields its address without `/api`."""
    port = free_port()
    address = f"http://{host}:{port}"
    environment = without_prefect()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_SERVER_UI_API_URL": f"{address}/api",
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(folder / "pages"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("prefect")), "server", "start"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", host, "--port", str(port)],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _healthy(address):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def own_server(folder: Path, host: str = HOST, auth: str | None = None, **variables: str) -> Generator[str]:
    """Starts a server as `deerstalker up` does, its database in `folder`, and yields its address with `/api`."""
    with database_lock(folder) as (lock, _):
        environment = {**without_prefect(), "PREFECT_HOME": str(folder), "DO_NOT_TRACK": "1", **variables}
        url, started = start_server(folder, 0, lock, environment, host, auth)
    try:
        wait_until_healthy(url, started, folder / "server.log")
        yield url
    finally:
        stop_process(started)


@contextmanager
def reporting_to(api: str, changes: Mapping[Setting, Any] = MappingProxyType({})) -> Generator[None]:
    """Flows of this process report to a server, within the block.

    Prefect keeps one thread that sends events, to the server that it met first; it is ended with the block.

    Args:
        api: Address, with `/api`.
        changes: More settings of Prefect.
    """
    EventsWorker.drain_all(timeout=_DRAIN_LIMIT_S)
    with temporary_settings({PREFECT_API_URL: api, **changes}):
        try:
            yield
        finally:
            EventsWorker.drain_all(timeout=_DRAIN_LIMIT_S)


def prefect_api(api: str, method: str, path: str, content: Any = None, auth: str | None = None) -> Any:
    """Returns an answer of Prefect's API; asks again while its database is busy (503), as Prefect's own client does.

    Args:
        api: Address, with `/api`.
        method: Of HTTP.
        path: Below the address.
        content: Value that is sent as JSON.
        auth: Auth string of the API.
    """
    headers = auth_headers(auth, {})
    limit = time.monotonic() + _BUSY_LIMIT_S
    while True:
        answer = httpx.request(method, api + path, json=content, headers=headers, timeout=60, trust_env=False)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > limit:
            break
        time.sleep(0.2)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def _healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/health", timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False
