"""`deerstalker down` where the server that it is to end does not answer any more."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.orchestration.run_environment import prepare_server_environment
from flows.orchestration.server.local_server import (
    InstallationRecord,
    StartedProcess,
    StartedWorker,
    start_guarded,
    stop_process,
)
from flows.orchestration.server.up_server import _replace_server
from tests.support.json_page import check_documented
from tests.support.processes import DEERSTALKER

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def _sleeper(folder: Path, name: str) -> StartedProcess:
    folder.mkdir(parents=True, exist_ok=True)
    return start_guarded(SLEEP, folder / f"{name}.log", os.environ)


def _down(store: Path) -> subprocess.CompletedProcess[str]:
    command = [DEERSTALKER, "down", "--store", str(store), "--json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=store)


@pytest.mark.long
def test_a_server_that_does_not_answer_is_ended_and_its_worker_remembered(tmp_path: Path) -> None:
    home = prepare_server_environment(tmp_path)
    server, worker = _sleeper(home, "server"), _sleeper(home, "worker")
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, as a stopped server does
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        InstallationRecord(
            url=url, server=server, worker=StartedWorker(**worker.model_dump(), name="mine", pool="here"), settings=()
        ).write(home)
        began = time.monotonic()
        done = _down(tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == ["worker", "server"]
    check_documented("down", json.loads(done.stdout))
    assert f"{url}: " in done.stderr and "until the next `up`" in done.stderr
    assert time.monotonic() - began < 300
    assert not server.alive and not worker.alive
    left = InstallationRecord.read(home)
    assert left is not None and (left.server, left.worker, left.gone) == (None, None, ("mine",))
    assert json.loads(_down(tmp_path).stdout)["ended"] == []
    assert InstallationRecord.read(home) is None


def test_a_store_that_does_not_answer_keeps_nothing_from_ending(tmp_path: Path) -> None:
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "PREFECT_HOME": str(tmp_path)}
    command = [DEERSTALKER, "down", "--store", "s3://bucket/of-mine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "nothing was running\n"), done.stderr


@pytest.mark.parametrize("same", [True, False])
def test_a_worker_with_another_auth_string_is_stopped(tmp_path: Path, same: bool) -> None:
    """It would be refused by the server, while `up` says that it runs."""
    process = _sleeper(tmp_path, "worker")
    worker = StartedWorker(**process.model_dump(), name="mine", pool="here")
    record = InstallationRecord(url="http://127.0.0.1:4200/api", worker=worker)
    replaced = _replace_server(record, record.url, same_auth=same)
    try:
        assert worker.alive == same
        assert (replaced.worker, replaced.gone) == ((worker, ()) if same else (None, ("mine",)))
    finally:
        stop_process(worker)
