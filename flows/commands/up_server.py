"""The server that `deerstalker up` uses: somebody else's, or one that it starts."""

import os
import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from artifacts.errors import BadInputError
from flows.api_access import (
    CLIENT_VARIABLE,
    SERVER_VARIABLE,
    masked,
    new_auth_string,
    parse_server,
    read_auth_string,
    wait_for_server_elsewhere,
    write_private,
)
from flows.listening import HOST
from flows.local_server import Record, database_lock, end, start_server


@dataclass(frozen=True)
class Elsewhere:
    """A server that somebody else runs.

    Attributes:
        url: The API, without a password.
        auth: Its auth string, where one was given.
    """

    url: str
    auth: str | None


@dataclass(frozen=True)
class Local:
    """A server that we start, where none runs.

    Attributes:
        auth: Have it ask for an auth string.
    """

    host: str
    port: int
    auth: bool


def named_elsewhere(server: str | None, host: str, auth: bool) -> Elsewhere | None:
    """The server that `--server` names.

    Raises:
        BadInputError: It names none, or options stand beside it that only a server of ours has.
    """
    if server is None:
        return None
    for option in (["--auth"] if auth else []) + ([f"--host {host}"] if host != HOST else []):
        expected = "an option of the server that `up` starts"
        raise BadInputError(option, "stands beside --server", expected, f"leave it out; there it is {SERVER_VARIABLE}")
    return Elsewhere(*parse_server(server))


def with_server(
    record: Record, home: Path, elsewhere: Elsewhere | None, local: Local
) -> tuple[Record, datetime | None]:
    """Starts a server where one is wanted and none runs.

    Returns:
        The record of what runs then, and since when the database of a new server was ours alone.
    """
    if record.server and record.server.alive:
        if elsewhere and elsewhere.url != record.url:
            found = f"{masked(record.url)} runs for {home}"
            raise BadInputError(f"--server {elsewhere.url}", found, "one server a folder", "`deerstalker down` first")
        if local.auth and not record.auth:
            found = f"{masked(record.url)} runs without an auth string"
            raise BadInputError("--auth", found, "a server that is started with it", "`deerstalker down` first")
        return record, None
    if elsewhere:
        return _with_server_elsewhere(record, home, elsewhere), None
    with database_lock(home) as (lock, alone_since):
        path = _own_auth(home, record, local)
        auth = read_auth_string(path) if path else None
        url, started = start_server(home, local.port, lock, os.environ, local.host, auth)
        record.model_copy(update={"server": started, "auth": path}).write(home)  # before anything else can fail
        record = _moved(record, url).model_copy(update={"server": started, "auth": path})
    record.write(home)
    return record, alone_since


def _with_server_elsewhere(record: Record, home: Path, elsewhere: Elsewhere) -> Record:
    """The record of a server that answers and lets us in, its auth string kept in a file of its own."""
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
    """The file of the auth string of a server that is about to start; None for one without.

    A server that died comes back as it was. The string stays the same from one `up` to the next.
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
    """Sets where Prefect's clients, in this process and in the worker, find the API; before Prefect is imported."""
    os.environ["PREFECT_API_URL"] = record.url
    if auth := record.auth_string:
        os.environ[CLIENT_VARIABLE] = auth


def exports(record: Record) -> str:
    """A line for a shell in which Prefect's commands are to find the API."""
    auth = f' {CLIENT_VARIABLE}="$(cat {shlex.quote(str(record.auth))})"' if record.auth else ""
    return f"export PREFECT_API_URL={shlex.quote(record.url)}{auth}\n"


def forget_password(record: Record) -> None:
    """Removes the password of a server that somebody else runs; ours keeps its own from one `up` to the next."""
    if record.auth and record.server is None:
        record.auth.unlink(missing_ok=True)


def _moved(record: Record, url: str) -> Record:
    """The record of another server in place of one that is gone, whose worker would ask it for work for ever."""
    if record.url == url:
        return record.model_copy(update={"server": None})
    forget_password(record)
    if record.worker:
        end(record.worker)
    return Record(url=url, gone=record.gone_workers, settings=record.settings)
