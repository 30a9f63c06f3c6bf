"""The local Prefect server: it takes reports, it ends with its command, and it says why where it does not start."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from flows.orchestration.server.local_server import database_lock
from tests.support.prefect_server import without_prefect
from tests.support.servers import free_port

LIMIT_S = 400

SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    from flows.orchestration.server.backend import PrefectBackend
    from flows.orchestration.run_environment import prepare_command_environment

    home = Path(sys.argv[1])
    prepare_command_environment(home, debug=False)
    with PrefectBackend(home / "server.log") as backend:
        from prefect import flow, task

        @task
        def one() -> int:
            return 1

        @flow(persist_result=False)
        def three() -> int:
            if sys.argv[2] == "die inside":
                print(backend.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if sys.argv[2].endswith("for good"):
                os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = "nonsense://"
            if sys.argv[2].startswith("lose the server"):
                before = backend.pid
                os.kill(before, signal.SIGKILL)
                while sys.argv[2].endswith("twice") and backend.pid in (before, None):
                    time.sleep(0.05)
                if backend.pid != before:
                    os.kill(backend.pid, signal.SIGKILL)  # while it starts
            if sys.argv[2] == "fill the disk":
                filler = open(home / "filler", "wb")
                os.posix_fallocate(filler.fileno(), 0, os.statvfs(home).f_bfree * os.statvfs(home).f_frsize)
            return one() + one() + one()

        with backend.ready():
            assert three() == 3
            if sys.argv[2] == "ask as a page":
                import httpx
                url = os.environ["PREFECT_API_URL"] + "/version"
                from flows.orchestration.server.api_access import auth_headers
                ours = auth_headers(os.environ["PREFECT_API_AUTH_STRING"], {})
                headers = [{**ours, "host": "evil.example"}, {**ours, "origin": "http://evil.example"}, {}, ours]
                print(*(httpx.get(url, headers=one, trust_env=False, timeout=60).status_code for one in headers))
            print(backend.pid, flush=True)
    assert "PREFECT_API_URL" not in os.environ
"""


def _run(home: Path, end: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(home), end],
        capture_output=True, text=True, timeout=LIMIT_S, env={**without_prefect(), **variables}, check=False,
    )  # fmt: skip


def _gone(pid: int) -> bool:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for the tests of this file: making its tables takes most of a first start."""
    return tmp_path_factory.mktemp("prefect")


def _states(home: Path) -> list[str]:
    """State names of the flow runs, the oldest first."""
    with sqlite3.connect(home / "prefect.db") as database:
        return [name for (name,) in database.execute("select state_name from flow_run order by created")]


@pytest.fixture(scope="module")
def killed(home: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A command that was killed inside its flow, and the states of the runs after it."""
    return _run(home, "die inside"), _states(home)


@pytest.fixture(scope="module")
def returned(home: Path, killed: object) -> subprocess.CompletedProcess[str]:
    """The next command, whose flow returned, and which asked the server as a page of another origin would."""
    del killed
    return _run(home, "ask as a page")


@pytest.mark.long
def test_the_server_ends_when_its_command_is_killed(
    killed: tuple[subprocess.CompletedProcess[str], list[str]],
) -> None:
    done, _ = killed
    assert done.returncode == -signal.SIGKILL
    assert _gone(int(done.stdout))


def test_a_flow_is_recorded_whole_and_the_server_ends_with_its_command(
    home: Path, returned: subprocess.CompletedProcess[str]
) -> None:
    assert (returned.returncode, returned.stderr) == (0, "")
    assert _gone(int(returned.stdout.splitlines()[-1]))
    with sqlite3.connect(home / "prefect.db") as database:
        assert database.execute("select state_name from task_run").fetchall() == [("Completed",)] * 3
        assert database.execute("select count(*) from events").fetchone() == (0,), "they were two thirds of the file"


@pytest.mark.usefixtures("returned")
def test_a_run_killed_on_the_way_is_crashed_by_the_next_command(
    home: Path, killed: tuple[subprocess.CompletedProcess[str], list[str]]
) -> None:
    assert killed[1] == ["Running"]
    assert _states(home) == ["Crashed", "Completed"]


def test_its_server_refuses_foreign_pages_and_nobody_else_reads_what_it_keeps(
    home: Path, returned: subprocess.CompletedProcess[str]
) -> None:
    assert returned.stdout.splitlines()[0] == "421 403 401 200", returned.stderr
    files = [home / name for name in ("prefect.db", "server.log", "in-use.lock")]
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in files] == ["0o600"] * 3


@pytest.mark.long
def test_a_database_that_was_readable_becomes_its_owners(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").touch(0o644)
    assert _run(tmp_path, "return").returncode == 0
    assert stat.S_IMODE((tmp_path / "prefect.db").stat().st_mode) == 0o600


@pytest.mark.long
@pytest.mark.parametrize("lost", ["lose the server", "lose the server twice"])
def test_a_server_that_dies_is_started_again_and_the_flow_is_recorded_whole(lost: str, tmp_path: Path) -> None:
    done = _run(tmp_path, lost)
    assert done.returncode == 0, done.stderr
    assert _gone(int(done.stdout))
    with sqlite3.connect(tmp_path / "prefect.db") as database:
        assert database.execute("select state_name from flow_run").fetchall() == [("Completed",)]
        assert database.execute("select state_name from task_run").fetchall() == [("Completed",)] * 3


@pytest.mark.release
def test_a_server_lost_for_good_is_named_with_its_log(tmp_path: Path) -> None:
    done = _run(tmp_path, "lose the server for good", PREFECT_CLIENT_MAX_RETRIES="1")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "Prefect API http://127.0.0.1:" in last
    assert f"expected a server that answers; see {tmp_path / 'server.log'}; then the same command continues" in last


def test_a_named_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    api = f"http://127.0.0.1:{free_port()}/api"
    done = _run(tmp_path, "return", PREFECT_API_URL=api.replace("//", "//someone:secret@"))
    assert done.returncode == 1
    assert f"DeerstalkerError: Prefect API {api}: ConnectError: " in done.stderr.splitlines()[-1]
    assert "secret" not in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_a_run_of_another_living_command_is_left_alone(tmp_path: Path) -> None:
    with database_lock(tmp_path):  # as a command that runs beside this one holds it
        assert _run(tmp_path, "die inside").returncode == -signal.SIGKILL
        assert _run(tmp_path, "return").returncode == 0
    with sqlite3.connect(tmp_path / "prefect.db") as database:
        states = database.execute("select state_name from flow_run order by created").fetchall()
    assert states == [("Running",), ("Completed",)]


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    done = _run(tmp_path, "return", PREFECT_SERVER_DATABASE_CONNECTION_URL="nonsense://")
    assert done.returncode == 1
    assert "local Prefect server: ended with" in done.stderr
    assert "nonsense" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("at", ["start", "work"])
def test_a_server_whose_disk_is_full_says_so(small_disk: Path, at: str) -> None:
    """It cannot write a log, and answers requests with HTTP 500."""
    subprocess.run(["mount", "-o", f"remount,size={'64k' if at == 'start' else '16m'}", str(small_disk)], check=True)
    done = _run(small_disk, "return" if at == "start" else "fill the disk")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"artifacts.errors.DiskFullError: {small_disk}: no space left, 0.0 MiB are free; "), last
