"""The server that `deerstalker up` uses: an external one, which `--server` names, or a local one, which it starts."""

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from artifacts.errors import BadInputError
from flows.orchestration.server.api_access import (
    CLIENT_VARIABLE,
    SERVER_VARIABLE,
    masked,
    new_auth_string,
    parse_server,
    read_auth_string,
    wait_for_external_server,
    write_private,
)
from flows.orchestration.server.local_server import HOST, InstallationRecord, database_lock, start_server, stop_process

PORT = 4200


@dataclass(frozen=True)
class ExternalServer:
    """A server that `--server` names and that `up` does not start.

    Attributes:
        url: Address of the API, without a password.
        auth: Auth string in that address, if it has one.
    """

    url: str
    auth: str | None


@dataclass(frozen=True)
class LocalServer:
    """A server that `up` starts if none runs.

    Attributes:
        host: Name or address on which it listens; None for `HOST`, or that of the server that runs.
        port: Its port; 0 takes a free one; None for `PORT`, or that of the server that runs.
        auth: Whether it requires an auth string.
    """

    host: str | None
    port: int | None
    auth: bool


def parse_external_server(server: str | None, local: LocalServer) -> ExternalServer | None:
    """Returns the server that `--server` names; None without `--server`.

    Raises:
        BadInputError: The address is invalid, or an option is given that only a local server has.
    """
    if server is None:
        return None
    options = {"--auth": local.auth, f"--host {local.host}": local.host, f"--port {local.port}": local.port is not None}
    if option := next((option for option, given in options.items() if given), None):
        remedy = f"leave it out; on the machine of that server set {SERVER_VARIABLE}" if local.auth else "leave it out"
        raise BadInputError(option, "given together with --server", "an option of the server that `up` starts", remedy)
    return ExternalServer(*parse_server(server))


def ensure_server(
    record: InstallationRecord, home: Path, external: ExternalServer | None, local: LocalServer
) -> tuple[InstallationRecord, datetime | None]:
    """Ensures that the server runs: starts a local server, unless it runs, or waits for an external one.

    Args:
        record: The record of the last `up`, or an empty one.
        home: PREFECT_HOME of the local server.

    Returns:
        The new record, which has been written, and the time of the start (see `database_lock`). The time is None if no
        server was started or if other processes use its database.

    Raises:
        BadInputError: A server with other options runs for the folder, or an option is invalid (see `start_server`
            and `wait_for_external_server`).
        DeerstalkerError: An external server does not answer, or a worker of the previous server does not end.
    """
    if record.server and record.server.alive:
        other = [f"--server {external.url}"] if external and external.url != record.url else []
        other += [f"--host {local.host}"] if local.host not in (None, record.host) else []
        other += [f"--port {local.port}"] if local.port and local.port != urlsplit(record.url).port else []
        if other:
            running = f"{masked(record.url)} runs for {home}" + (f", on host {record.host}" if record.host else "")
            raise BadInputError(" ".join(other), running, "one server a folder", "`deerstalker down` first")
        if local.auth and not record.auth:
            running = f"{masked(record.url)} runs without an auth string"
            raise BadInputError("--auth", running, "a server that is started with --auth", "`deerstalker down` first")
        return record, None
    if external:
        return _record_external_server(record, home, external), None
    known = _known_auth(record)
    with database_lock(home) as (lock, alone_since):
        path = _write_own_auth(home, record, local)
        auth = read_auth_string(path) if path else None
        host, port = local.host or HOST, PORT if local.port is None else local.port
        url, started = start_server(home, port, lock, os.environ, host, auth)
        # Recorded first, because stopping the old worker may fail.
        new = {"server": started, "auth": path, "host": host}
        record.model_copy(update=new).write(home)
        record = _replace_server(record, url, same_auth=auth == known).model_copy(update=new)
    record.write(home)
    return record, alone_since


def _record_external_server(record: InstallationRecord, home: Path, external: ExternalServer) -> InstallationRecord:
    """Waits for an external server and writes and returns its record; its auth string goes to a private file."""
    known = record.auth_string if record.url == external.url and not record.server else None
    given, path = external.auth or known, None
    auth = given or os.environ.get(CLIENT_VARIABLE) or None
    wait_for_external_server(external.url, auth)
    record = _replace_server(record, external.url, same_auth=given == _known_auth(record))
    if given:
        path = home.resolve() / "auth-string-elsewhere"
        write_private(path, given + "\n")
    record = record.model_copy(update={"auth": path})
    record.write(home)
    return record


def _write_own_auth(home: Path, record: InstallationRecord, local: LocalServer) -> Path | None:
    """Writes the auth string of a server that is about to start and returns its file; None if it requires none.

    PREFECT_SERVER_API_AUTH_STRING takes precedence. A generated string stays the same from one `up` to the next. A
    server that died is started again with an auth string if it had one.
    """
    path, set_by_user = home.resolve() / "auth-string", os.environ.get(SERVER_VARIABLE)
    if set_by_user:
        write_private(path, set_by_user + "\n")
    elif local.auth or (record.server and record.auth):
        write_private(path, (read_auth_string(path) if path.exists() else new_auth_string()) + "\n")
    else:
        return None
    return path


def set_client_environment(record: InstallationRecord) -> None:
    """Sets address and auth string of the API for Prefect's clients, here and in child processes.

    Call it before importing Prefect.
    """
    os.environ["PREFECT_API_URL"] = record.url
    if auth := record.auth_string:
        os.environ[CLIENT_VARIABLE] = auth


def export_command(record: InstallationRecord) -> str:
    """Returns the shell command after which Prefect's commands in the same shell find the API."""
    auth = f' {CLIENT_VARIABLE}="$(cat {shlex.quote(str(record.auth))})"' if record.auth else ""
    return f"export PREFECT_API_URL={shlex.quote(record.url)}{auth}\n"


def remove_external_password(record: InstallationRecord) -> None:
    """Removes the password file of an external server; that of a local server stays for the next `up`."""
    if record.auth and record.server is None:
        record.auth.unlink(missing_ok=True)


def _known_auth(record: InstallationRecord) -> str | None:
    """Returns the auth string that the worker of the last `up` has; None without one, or if its file is gone."""
    with suppress(BadInputError):
        return record.auth_string
    return None


def _replace_server(record: InstallationRecord, url: str, *, same_auth: bool) -> InstallationRecord:
    """Returns the record for a new server at `url`; if address or auth string change, stops the old worker."""
    if record.url == url and same_auth:
        return record.model_copy(update={"server": None, "host": None})
    remove_external_password(record)
    if record.worker:
        stop_process(record.worker)
    return InstallationRecord(url=url, gone=record.gone_workers, settings=record.settings)
