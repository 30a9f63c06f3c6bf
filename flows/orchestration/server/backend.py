"""The Prefect server of a command: one that runs already, or a local one that ends with the command.

Prefect can start a server by itself, but then the command waits for it, Ctrl-C reaches it, and it survives a command
that is killed. Here the server starts while the command imports modules, in its own session, under the guard of
`stages/processes/guard.py`.
"""

import fcntl
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from artifacts.errors import SEE_DOCTOR, DeerstalkerError, chain_of
from artifacts.local.full_disk import DiskWatch, temporary_folder
from artifacts.local.log_tail import tail_of
from artifacts.store.unreachable import why_unreachable
from flows.orchestration.server.api_access import (
    CLIENT_VARIABLE,
    SERVER_VARIABLE,
    new_auth_string,
    private,
    private_folder,
)
from flows.orchestration.server.local_server import InstallationRecord, database_lock, running_server
from stages.processes.guarded import GuardedProcess
from stages.processes.scratch import PREFIX, Scratch

if TYPE_CHECKING:
    import httpx

TAG = "deerstalker"
"""Tag of Deerstalker's flow runs on a shared server; the automation for dead runs watches only these."""

_START_TIMEOUT_S = 120.0
_HEALTH_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 30.0
_CHECK_INTERVAL_S = 0.5
_MAX_FAILED_RESTARTS = 5


class PrefectBackend:
    """The Prefect API to which flows report.

    Entering starts a local server without waiting for it, unless PREFECT_API_URL names a server; leaving stops it. A
    local server that dies is started again at the same address. Flows continue, because Prefect's client repeats its
    requests and the database is a file. It asks for a password that only this process and those below it know. Import
    Prefect inside the block, not before.

    Args:
        log: File for the local server's output.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self._home = Path(os.environ.get("PREFECT_HOME") or log.parent)
        self._process: GuardedProcess | None = None
        self._exit_stack = ExitStack()
        self._lock = -1
        self._missing_folders = [folder for folder in (self._home, *self._home.parents) if not folder.exists()]
        self._alone_since: datetime | None = None
        self._address = ("127.0.0.1", 0)
        self._auth, self._given_auth = new_auth_string(), os.environ.get(CLIENT_VARIABLE)
        self._answered = self._entered = False
        self._leaving = threading.Event()
        self._disks = DiskWatch((self._home, log.parent, temporary_folder()))
        self._watch = threading.Thread(target=self._keep_alive, name="server-watch", daemon=True)

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self._disks)
            with self._disks.explaining():
                self._enter(entered)
            self._exit_stack = entered.pop_all()
        return self

    def _enter(self, entered: ExitStack) -> None:
        named = os.environ.get("PREFECT_API_URL")
        if not named or named == running_server(self._home):
            self._lock, self._alone_since = entered.enter_context(database_lock(self._home))
        if not named:
            self._process = self._start()
            self._watch.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._leaving.set()
            self._watch.join()
            del os.environ["PREFECT_API_URL"], os.environ[CLIENT_VARIABLE]
            if self._given_auth is not None:
                os.environ[CLIENT_VARIABLE] = self._given_auth
            self._process.stop()
            self._process = None
        if error is not None and not self._entered:
            self._remove_new_folders()
        self._exit_stack.close()

    @property
    def pid(self) -> int | None:
        """Process id of the local server's guard, which is also its session id; None if another server is used."""
        return self._process.pid if self._process else None

    @contextmanager
    def ready(self) -> Generator[None]:
        """Waits until flows can run; on exit, waits until the server has received their logs and events.

        Raises:
            DeerstalkerError: The local server does not start, or the API did not answer any of Prefect's attempts.
        """
        self._entered = True
        if self._process is None:
            from prefect import tags

            with tags(TAG), self._disks.explaining(), explain_no_answer("start it, or name another"):
                yield
            return
        with self._disks.explaining():
            self._wait()
            self._crash_dead_runs()
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        # Heartbeats lengthen each run by a second, and the command's own server has no automation that needs them.
        with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            try:
                with self._disks.explaining(), explain_no_answer(f"see {self.log}"):
                    yield
            finally:
                _drain()

    def _crash_dead_runs(self) -> None:
        if self._alone_since is None:
            return
        from flows.orchestration.server.dead_runs import crash_dead_runs

        record = InstallationRecord.read(self._home)
        workers = record.gone_workers if record else ()
        message = "Found without a process by a later command."
        crash_dead_runs(message, before=self._alone_since, workers=workers, unclaimed=True)

    def _remove_new_folders(self) -> None:
        """Removes the folders that this command created, unless they are in use; call it only if no flow has run."""
        if self._lock < 0 or self._home not in self._missing_folders:
            return
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._home)
            for folder in self._missing_folders[1:]:
                folder.rmdir()

    def _keep_alive(self) -> None:
        """Restarts the server whenever it dies; stops if it never answered or several restarts failed in a row."""
        failed_restarts = 0
        while not self._leaving.wait(_CHECK_INTERVAL_S) and failed_restarts < _MAX_FAILED_RESTARTS:
            if self._process is None or self._process.exit_code() is None or not self._answered:
                continue
            self._process.stop()
            with suppress(OSError):  # the port is still in use: try again later
                self._process = self._start()
                failed_restarts += 1
                with suppress(DeerstalkerError):
                    self._wait()
                    failed_restarts = 0

    def _start(self) -> GuardedProcess:
        """Starts the server without waiting for it; a later start reuses the address of the first.

        Raises:
            OSError: The port of the first start is in use.
        """
        private_folder(self.log.parent)
        mode = "wb" if self._process is None else "ab"
        with socket.create_server(self._address) as listener, open(self.log, mode, opener=private) as log:
            self._address = listener.getsockname()
            scratch = Scratch(f"{PREFIX}server-")
            script = str(Path(__file__).with_name("server_process.py"))
            environment = {**os.environ, "PREFECT_SERVER_UI_ENABLED": "false", SERVER_VARIABLE: self._auth}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without cached bytecode a start takes 8 s longer
            command = [sys.executable, "-P", script, str(listener.fileno())]
            keep = [listener.fileno(), scratch.lock]
            process = GuardedProcess(command, scratch.path, log, environment, keep=keep)
            scratch.leave()
        os.environ["PREFECT_API_URL"] = f"http://{self._address[0]}:{self._address[1]}/api"
        os.environ[CLIENT_VARIABLE] = self._auth
        return process

    def _wait(self) -> None:
        """Waits until the server answers.

        Raises:
            DeerstalkerError: The server ended or did not answer within `_START_TIMEOUT_S`, or this command is leaving.
        """
        import httpx

        process = self._process
        assert process is not None
        url = os.environ["PREFECT_API_URL"] + "/health"
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and process.exit_code() is None and not self._leaving.is_set():
            with suppress(httpx.TransportError):
                if httpx.get(url, timeout=_HEALTH_TIMEOUT_S, trust_env=False).is_success:
                    self._answered = True
                    return
            time.sleep(0.05)
        raise DeerstalkerError(
            "local Prefect server",
            f"not ready after {_START_TIMEOUT_S:.0f} s"
            if process.exit_code() is None
            else f"ended with {process.exit_code()}",
            "a server that starts",
            f"see {self.log}, or name a running one in PREFECT_API_URL",
            tail_of(self.log.read_text(errors="replace")),
        )


@contextmanager
def explain_no_answer(remedy: str) -> Generator[None]:
    """Raises an error that names the API and a remedy if Prefect's client gets no answer, or HTTP 500, in the block.

    Raises:
        DeerstalkerError: The API did not answer, or could not do what was asked.
    """
    import httpx

    try:
        yield
    except DeerstalkerError:
        raise
    except Exception as error:
        url = httpx.URL(os.environ["PREFECT_API_URL"])
        if (reason := _of_api(error, url)) is None:
            raise
        raise DeerstalkerError(
            f"Prefect API {url.copy_with(userinfo=b'')}",  # without a password
            *(reason[:2]),
            f"{reason[2] or remedy}; then the same command continues where it stopped; {SEE_DOCTOR}",
        ) from error


def _of_api(error: Exception, url: "httpx.URL") -> tuple[str, str, str] | None:
    """Returns what was found, what is expected and a remedy (or "") if an error comes from the API at `url`."""
    import httpx

    # The client wraps the error of its first request in a RuntimeError.
    reason = error.__cause__ if isinstance(error, RuntimeError) else error
    if isinstance(reason, httpx.TransportError):
        return why_unreachable(reason) or (f"{type(reason).__name__}: {reason}", "a server that answers", "")
    for link in chain_of(error):
        if isinstance(link, httpx.HTTPStatusError) and link.response.is_server_error and _same(link.request.url, url):
            remedy = "see the server's log, and whether the disk of its database is full"
            return f"HTTP {link.response.status_code}", "a server that can do what is asked", remedy
    return None


def _same(one: "httpx.URL", other: "httpx.URL") -> bool:
    """Returns whether two addresses are of the same server."""
    return (one.host, one.port) == (other.host, other.port)


def _drain() -> None:
    """Waits until the server has received the logs and events of this process."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=_DRAIN_TIMEOUT_S)
    EventsWorker.drain_all(timeout=_DRAIN_TIMEOUT_S)
