"""The Prefect server and the worker of a data folder, which `deerstalker up` starts and `deerstalker down` stops.

Each runs under `stages/processes/guard.py`, as engines do: when the guard ends, all processes below it end. A record
beside Prefect's database lists the started processes by id and start time, because process ids are reused.
"""

import fcntl
import ipaddress
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from artifacts.documents.document import Document
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.local.input_files import read_regular
from artifacts.local.log_tail import tail_of
from flows.orchestration.server.api_access import (
    SERVER_VARIABLE,
    private,
    private_folder,
    read_auth_string,
    write_private,
)
from stages.processes import guard
from stages.processes.process_pool import start_ticks

HOST = "127.0.0.1"
"""Where a server listens by default; only programs of this machine can reach it."""
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
_UI_API_URL_VARIABLE = "PREFECT_SERVER_UI_API_URL"
_SIGNATURE = "# Written by `deerstalker up`, removed by `deerstalker down`.\n"


class StartedProcess(Document):
    """A process that runs, or ran, under a guard.

    Attributes:
        pid: Process id of the guard, which is also the session id.
        ticks: Start time of the guard, in clock ticks since the machine started.
    """

    pid: int
    ticks: int

    @property
    def alive(self) -> bool:
        """Whether the process still runs; another process with its id does not count."""
        return start_ticks(self.pid) == self.ticks


class StartedWorker(StartedProcess):
    """A worker that runs, or ran, under a guard.

    Attributes:
        name: Name of the worker; Prefect labels the worker's runs with it.
        pool: Work pool of the worker.
    """

    name: str
    pool: str


class InstallationRecord(Document):
    """The processes and files that `up` made for a data folder.

    Attributes:
        url: Address of the Prefect API.
        host: Name or address on which the local server listens; None if there is none.
        server: The local server; None if `up --server` names an external one.
        worker: The worker, if one was started.
        gone: Names of earlier workers. They are kept because a run of theirs may still be alive at the next `up`.
        settings: `prefect.toml` files that `up` wrote, which give the API's address to Prefect's commands.
        auth: File with the API's auth string, if it requires one.
    """

    url: str
    host: str | None = None
    server: StartedProcess | None = None
    worker: StartedWorker | None = None
    gone: tuple[str, ...] = ()
    settings: tuple[Path, ...] = ()
    auth: Path | None = None

    @property
    def auth_string(self) -> str | None:
        """The API's auth string; None if it requires none.

        Raises:
            BadInputError: Its file cannot be read or contains none.
        """
        return read_auth_string(self.auth) if self.auth else None

    @property
    def gone_workers(self) -> tuple[str, ...]:
        """Names of all workers of the folder that no longer run."""
        return (*self.gone, self.worker.name) if self.worker and not self.worker.alive else self.gone

    @classmethod
    def read(cls, home: Path) -> "InstallationRecord | None":
        """Returns the record of a data folder; None if nothing was started.

        Raises:
            BadInputError: The record cannot be read.
        """
        path = _record(home)
        try:
            return cls.model_validate_json(read_regular(path))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise BadInputError(
                str(path), "a damaged record", "the record that `deerstalker up` wrote", "remove it"
            ) from error
        except OSError as error:
            remedy = "if it belongs to another account, set PREFECT_HOME to a folder of yours"
            raise BadInputError(str(path), f"cannot be read ({error.strerror})", "a record", remedy) from error

    def write(self, home: Path) -> None:
        """Writes the record completely or not at all."""
        write_private(_record(home), self.model_dump_json(indent=2) + "\n")


def _record(home: Path) -> Path:
    return home / "up.json"


def write_settings(folder: Path, url: str, auth: str | None) -> Path | None:
    """Writes a `prefect.toml` by which Prefect's commands in a folder find the API.

    Args:
        auth: The API's auth string, if any; then only the owner can read the file.

    Returns:
        The file; None if the folder has a `prefect.toml` that `up` did not write, or cannot be written.
    """
    path = folder / "prefect.toml"
    try:
        if path.is_symlink() or (path.exists() and not _is_ours(path)):
            return None
        lines = [f"url = {json.dumps(url)}"] + (
            [f"auth_string = {json.dumps(auth, ensure_ascii=False)}"] if auth else []
        )
        text = f"{_SIGNATURE}[api]\n" + "\n".join(lines) + "\n"
        if auth:
            write_private(path, text)
        else:
            path.write_text(text)
    except OSError:
        return None
    return path


def remove_settings(path: Path) -> None:
    """Removes a file that `write_settings` wrote, unless another file has replaced it."""
    if path.exists() and _is_ours(path):
        path.unlink()


def _is_ours(path: Path) -> bool:
    return read_regular(path).startswith(_SIGNATURE.encode())


def running_server(home: Path) -> str | None:
    """Returns the address of the Prefect API that `up` runs for a data folder; None if it does not run."""
    record = InstallationRecord.read(home)
    return record.url if record and record.server and record.server.alive else None


def auth_string_of(url: str | None, home: Path) -> str | None:
    """Returns the auth string of an API from the record of a data folder; None if it names another API or no string.

    Raises:
        BadInputError: The record or the auth string cannot be read.
    """
    record = InstallationRecord.read(home) if url else None
    return record.auth_string if record and record.url == url else None


@contextmanager
def _lock_file(home: Path, name: str) -> Generator[int]:
    """Yields the descriptor of a lock file in a data folder; both are made if they are missing."""
    private_folder(home)
    descriptor = os.open(home / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def installation_lock(home: Path) -> Generator[None]:
    """Keeps other `up` and `down` of a data folder out, which would start, end and record the same processes.

    The processes that the block starts do not inherit the lock.

    Raises:
        BadInputError: One is at work.
    """
    with _lock_file(home, "up.lock") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            working = "another `up` or `down` is at work for this folder"
            raise BadInputError(str(home), working, "one at a time", "try again when it has ended") from error
        yield


@contextmanager
def database_lock(home: Path) -> Generator[tuple[int, datetime | None]]:
    """Takes a shared lock on Prefect's database and yields the lock's descriptor and a time.

    The time is None if other processes use the database. Otherwise it is the present, and runs that were created
    earlier and that the database lists as running are dead. A child process that inherits the descriptor keeps the lock
    until it ends, even if its parent ends earlier.
    """
    with _lock_file(home, "in-use.lock") as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone_since = datetime.now(UTC)
        except BlockingIOError:
            alone_since = None
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor, alone_since


def start_server(
    home: Path, port: int, lock: int, environment: Mapping[str, str], host: str = HOST, auth: str | None = None
) -> tuple[str, StartedProcess]:
    """Starts a server without waiting for it.

    Args:
        lock: Descriptor of the lock on the database; the server inherits it.
        host: Name or address on which the server listens.
        auth: Auth string of the server; None admits everybody who can reach it.

    Returns:
        The address of its API, and its process.

    Raises:
        BadInputError: The port is in use; the host is not an address of this machine; or other machines can reach it
            and there is no auth string.
    """
    address, family = _address_of(host)
    ip = ipaddress.ip_address(address.partition("%")[0])
    if not ip.is_loopback and auth is None:
        risk = "other machines can reach it and could run programs here"
        raise BadInputError(f"--host {host}", risk, f"{HOST}, or a password", "add --auth")
    try:
        listener = socket.create_server((address, port), family=family)
    except OSError as error:
        raise BadInputError(
            f"--port {port}" if host == HOST else f"--host {host} --port {port}",
            f"cannot be used ({error.strerror})",
            "a free port" if host == HOST else "an address of this machine and a free port",
            "choose another, or end the program that uses it",
        ) from error
    with listener:
        script = str(Path(__file__).with_name("server_process.py"))
        command = [sys.executable, "-P", script, str(listener.fileno()), host]
        named = HOST if ip.is_unspecified else f"[{host}]" if ":" in host else host
        url = f"http://{named}:{listener.getsockname()[1]}/api"
        environment = {_UI_API_URL_VARIABLE: "/api", **environment}  # by default pages send requests to port 4200
        if auth:
            environment[SERVER_VARIABLE] = auth
        started = start_guarded(command, home / "server.log", environment, keep=(listener.fileno(), lock))
        return url, started


def _address_of(host: str) -> tuple[str, socket.AddressFamily]:
    """Returns the IP address of a host name, and its family.

    Raises:
        BadInputError: The name has no address.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise BadInputError(
            f"--host {host}", "not a known host", "a name or an address of this machine", HOST
        ) from error
    return str(address[0]), family


def start_worker(home: Path, pool: str, environment: Mapping[str, str], lock: int) -> StartedWorker:
    """Starts a process worker of a pool without waiting for it.

    Args:
        lock: Descriptor of the lock on the database. The worker inherits it, so that its runs do not count as dead when
            a server is started again.
    """
    name = f"{socket.gethostname()}-{secrets.token_hex(3)}"
    script = str(Path(__file__).with_name("worker_process.py"))
    command = [sys.executable, "-P", script, "worker", "start", "--pool", pool, "--type", "process", "--name", name]
    started = start_guarded(command, home / "worker.log", environment, keep=(lock,))
    return StartedWorker(**started.model_dump(), name=name, pool=pool)


def start_guarded(
    command: Sequence[str], log: Path, environment: Mapping[str, str], keep: Sequence[int] = ()
) -> StartedProcess:
    """Starts a command under a guard in a new session, so that it outlives this process.

    Args:
        log: File to which its output is appended.
        keep: File descriptors that it inherits.
    """
    scratch = log.parent / f"scratch-{secrets.token_hex(4)}"
    with open(log, "ab", opener=private) as output:
        process = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, "-1", str(scratch), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=tuple(keep),
            start_new_session=True,
        )
    return StartedProcess(pid=process.pid, ticks=start_ticks(process.pid) or 0)


def wait_until_healthy(url: str, process: StartedProcess, log: Path) -> None:
    """Waits until a local server answers.

    Raises:
        DeerstalkerError: The server ended, or did not answer within `START_TIMEOUT_S`.
    """
    import httpx

    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.alive:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success:
                return
        time.sleep(0.1)
    raise DeerstalkerError(
        "Prefect server",
        f"not ready after {START_TIMEOUT_S:.0f} s" if process.alive else "ended",
        "a server that starts",
        f"see {log}",
        tail_of(log.read_text(errors="replace")),
    )


def end_process(process: StartedProcess) -> bool:
    """Asks a process and its children to end, without waiting; returns whether it was still running."""
    if not process.alive:
        return False
    os.kill(process.pid, signal.SIGTERM)
    return True


def stop_process(process: StartedProcess) -> bool:
    """Stops a process and its children; returns whether it was still running.

    Raises:
        DeerstalkerError: The process does not end within `STOP_TIMEOUT_S`.
    """
    if not end_process(process):
        return False
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while process.alive:
        if time.monotonic() > deadline:
            raise DeerstalkerError(f"process {process.pid}", f"still runs after {STOP_TIMEOUT_S:.0f} s", "its end")
        time.sleep(0.05)
    return True
