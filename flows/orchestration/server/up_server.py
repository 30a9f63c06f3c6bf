"""The server that `deerstalker up` uses: one that runs elsewhere, or one that it starts."""

import os
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from artifacts.errors import BadInputError
from flows.orchestration.server.api_access import (
    CLIENT_VARIABLE,
    SERVER_VARIABLE,
    masked,
    new_auth_string,
    parse_server,
    read_auth_string,
    wait_for_server_elsewhere,
    write_private,
)
from flows.orchestration.server.listening import HOST
from flows.orchestration.server.local_server import Record, database_lock, end, start_server


@dataclass(frozen=True)
class Elsewhere:
    """A server that runs elsewhere.

    Attributes:
        url: Address of the API, without a password.
        auth: Auth string of the API, if one was given.
    """

    url: str
    auth: str | None


@dataclass(frozen=True)
class Local:
    """A server that `up` starts if none runs.

    Attributes:
        auth: Whether the server asks for an auth string.
    """

    host: str
    port: int
    auth: bool


def named_elsewhere(server: str | None, host: str, auth: bool) -> Elsewhere | None:
    """Returns the server that `--server` names; None without `--server`.

    Raises:
        BadInputError: The address is invalid, or options are given that only a local server has.
    """
    if server is None:
        return None
    for option in (["--auth"] if auth else []) + ([f"--host {host}"] if host != HOST else []):
        expected = "an option of the server that `up` starts"
        raise BadInputError(
            option, "given together with --server", expected, f"leave it out; there it is {SERVER_VARIABLE}"
        )
    return Elsewhere(*parse_server(server))


def with_server(
    record: Record, home: Path, elsewhere: Elsewhere | None, local: Local
) -> tuple[Record, datetime | None]:
    """Starts a local server if it is needed and does not run.

    Returns:
        The new record, and the time since which only the new server has used its database; None for the time if the
        server ran already, or if other processes use the database.
    """
    if record.server and record.server.alive:
        if elsewhere and elsewhere.url != record.url:
            running = f"{masked(record.url)} runs for {home}"
            raise BadInputError(f"--server {elsewhere.url}", running, "one server a folder", "`deerstalker down` first")
        if local.auth and not record.auth:
            running = f"{masked(record.url)} runs without an auth string"
            raise BadInputError("--auth", running, "a server that is started with it", "`deerstalker down` first")
        return record, None
    if elsewhere:
        return _with_server_elsewhere(record, home, elsewhere), None
    with database_lock(home) as (lock, alone_since):
        path = _own_auth(home, record, local)
        auth = read_auth_string(path) if path else None
        url, started = start_server(home, local.port, lock, os.environ, local.host, auth)
        record.model_copy(update={"server": started, "auth": path}).write(
            home
        )  # record the server before anything can fail
        record = _moved(record, url).model_copy(update={"server": started, "auth": path})
    record.write(home)
    return record, alone_since


def _with_server_elsewhere(record: Record, home: Path, elsewhere: Elsewhere) -> Record:
    """Waits for a server that runs elsewhere and returns its record; writes its auth string to a private file."""
    known = record.auth_string if record.url == elsewhere.url and not record.server else None
    auth = elsewhere.auth or known or os.environ.get(CLIENT_VARIABLE) or None
    wait_for_server_elsewhere(elsewhere.url, auth)
    record, path = _moved(record, elsewhere.url), None
    if auth and (elsewhere.auth or known):
        path = home.resolve() / "auth-string-elsewhere"
        write_private(path, auth + "\n")
    record = record.model_copy(update={"auth": path})
    record.write(home)
    return record


def _own_auth(home: Path, record: Record, local: Local) -> Path | None:
    """Writes the auth string of a server that is about to start and returns its file; None without an auth string.

    A server that died is started again with its auth string. The string stays the same from one `up` to the next.
    """
    path, set_by_user = home.resolve() / "auth-string", os.environ.get(SERVER_VARIABLE)
    if set_by_user:
        write_private(path, set_by_user + "\n")
    elif local.auth or (record.server and record.auth):
        write_private(path, (read_auth_string(path) if path.exists() else new_auth_string()) + "\n")
    else:
        return None
    return path


def let_prefect_find(record: Record) -> None:
    """Sets the API address for Prefect's clients, here and in the worker; call it before importing Prefect."""
    os.environ["PREFECT_API_URL"] = record.url
    if auth := record.auth_string:
        os.environ[CLIENT_VARIABLE] = auth


def exports(record: Record) -> str:
    """Returns the shell command with which Prefect's commands find the API."""
    auth = f' {CLIENT_VARIABLE}="$(cat {shlex.quote(str(record.auth))})"' if record.auth else ""
    return f"export PREFECT_API_URL={shlex.quote(record.url)}{auth}\n"


def forget_password(record: Record) -> None:
    """Removes the password file of a server that runs elsewhere; that of a local server stays for the next `up`."""
    if record.auth and record.server is None:
        record.auth.unlink(missing_ok=True)


def _moved(record: Record, url: str) -> Record:
    """Returns the record of a server that replaces another; stops the old server's worker if the address changes."""
    if record.url == url:
        return record.model_copy(update={"server": None})
    forget_password(record)
    if record.worker:
        end(record.worker)
    return Record(url=url, gone=record.gone_workers, settings=record.settings)
