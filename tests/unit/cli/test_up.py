"""What `deerstalker up` says of a server that cannot be used, or not as asked, and of another `up` at work."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from flows.orchestration.server.local_server import (
    InstallationRecord,
    StartedProcess,
    end_process,
    installation_lock,
    start_guarded,
)
from flows.orchestration.server.up_server import LocalServer, ensure_server
from stages.processes.process_pool import start_ticks
from tests.support.prefect_server import without_prefect
from tests.support.processes import DEERSTALKER
from tests.support.serving import Replies, http_server


class _Healthy(Replies):
    """Says that it is well, and never answers anything else."""

    def do_GET(self) -> None:
        if self.path.endswith("/health"):
            self.reply(True)

    def do_POST(self) -> None:
        self.close_connection = True


def test_a_server_that_stops_answering_is_named(tmp_path: Path) -> None:
    with http_server(_Healthy) as url:
        api = f"{url}/api"
        command = [DEERSTALKER, "up", "--no-worker", "--server", api]
        done = subprocess.run(
            [*command, "--store", str(tmp_path)],
            env={**without_prefect(), "PREFECT_CLIENT_MAX_RETRIES": "0"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Prefect API {api}: " in done.stderr
    assert "expected a server that answers; restart it; then the same command" in done.stderr
    assert "internal" not in done.stderr


def test_up_and_down_work_one_at_a_time_for_a_folder(tmp_path: Path) -> None:
    """Otherwise each would write its own record, and the other's worker or server would be lost, or ended by it."""
    home = tmp_path / ".prefect"
    environment = {name: value for name, value in without_prefect().items() if name != "PREFECT_HOME"}
    with installation_lock(home), socket.create_server(("127.0.0.1", 0)) as taken:
        InstallationRecord(url="http://127.0.0.1:4200/api").write(home)
        for command in (["up", "--port", str(taken.getsockname()[1])], ["down"]):
            done = subprocess.run(
                [DEERSTALKER, *command, "--store", str(tmp_path)],
                env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
            )  # fmt: skip
            assert "another `up` or `down` is at work for this folder" in done.stderr, done
            assert done.returncode == 2
        started = start_guarded([sys.executable, "-c", "import time; time.sleep(600)"], home / "log", os.environ)
    try:
        with installation_lock(home):  # what the other one has started does not hold it
            assert started.alive
    finally:
        end_process(started)


@pytest.mark.parametrize(
    ("local", "refused"),
    [
        (LocalServer(None, 5000, auth=False), "--port 5000: "),
        (LocalServer("127.0.0.1", None, auth=False), "--host 127.0.0.1: "),
        (LocalServer("127.0.0.1", 5000, auth=False), "--host 127.0.0.1 --port 5000: "),
        (LocalServer(None, None, auth=True), "--auth: "),
        (LocalServer(None, None, auth=False), None),
        (LocalServer(None, 0, auth=False), None),
        (LocalServer("0.0.0.0", 4201, auth=False), None),
    ],
)
def test_a_running_server_keeps_its_address(tmp_path: Path, local: LocalServer, refused: str | None) -> None:
    """A host for all addresses is not in the URL, so the record names it."""
    running = StartedProcess(pid=os.getpid(), ticks=start_ticks(os.getpid()) or 0)
    record = InstallationRecord(url="http://127.0.0.1:4201/api", host="0.0.0.0", server=running)
    if refused is None:
        assert ensure_server(record, tmp_path, None, local) == (record, None)
        return
    with pytest.raises(BadInputError, match="`deerstalker down` first") as error:
        ensure_server(record, tmp_path, None, local)
    assert error.value.line.startswith(refused)
