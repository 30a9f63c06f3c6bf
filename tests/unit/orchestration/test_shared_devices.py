"""A run says which other runs compute on its devices."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from artifacts.store.store import Store
from flows.opening import RunRequest, opened_stages
from flows.orchestration import shared_devices
from flows.orchestration.shared_devices import say_who_computes_here
from flows.report.terminal.live import LiveView, use_view
from stages.context import Profile
from stages.hardware.compute_type import CudaDevice
from stages.processes.scratch import Scratch

STORE = Store.open("memory://devices")
_OTHER = """
import sys, time
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.support import memory_store
from artifacts.store.store import Store
from flows.orchestration.shared_devices import say_who_computes_here
from stages.context import Profile
from stages.processes.scratch import Scratch
memory_store.register()
store = Store.open("memory://devices")
profile = Profile(gpu_slot=sys.argv[2] if len(sys.argv) > 2 else None)
say_who_computes_here(Scratch().path, sys.argv[1], store, profile, lambda line: print(line, flush=True))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for temporary files of this process and those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """The run `theirs` in another process, which computes on the same cores."""
    process = started()
    yield process
    process.kill()
    process.communicate()


def started(*slot: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", _OTHER, "theirs", *slot], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n", "it is alone"
    return process


def said(run: str, profile: Profile | None = None) -> list[str]:
    lines: list[str] = []
    scratch = Scratch()
    say_who_computes_here(scratch.path, run, STORE, profile or Profile(), lines.append)
    scratch.remove()
    return lines


def test_the_other_run_is_named_until_it_ends(other: subprocess.Popen[str]) -> None:
    (line,) = said("mine")
    assert f"run 'theirs' (process {other.pid}) computes there, too; expected one run at a time" in line
    assert line.startswith("warning: ") and "CPU core" in line and "gpu_slot=gpu" in line and "\n" not in line
    assert len(said("mine", Profile(gpu_slot="gpu"))) == 1, "the other has no permit"
    assert said("theirs") == [], "the two halves of a run share a machine on purpose"
    other.kill()
    other.wait()
    assert said("mine") == []


def test_runs_with_permits_of_one_server_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    other = started("gpu")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert said("mine", Profile(gpu_slot="gpu")) == []
    assert len(said("mine")) == len(said("mine", Profile(gpu_slot="second"))) == 1
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:7/api"}):
        assert len(said("mine", Profile(gpu_slot="gpu"))) == 1, "each has a server of its own"
    other.kill()
    other.communicate()


def test_runs_on_other_gpus_are_no_neighbours(monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[str]) -> None:
    monkeypatch.setattr(shared_devices, "cuda_devices", lambda: (CudaDevice("H100", (9, 0), 80 << 30, "GPU-1"),))
    assert said("mine") == [], "the other computes on the cores"
    note = (mine := Scratch()).path / "device_use.json"
    note.write_text('{"run": "third", "store": "s", "process_id": 7, "devices": ["GPU-0", "GPU-1"]}')
    (line,) = said("mine")
    assert (
        line.startswith("warning: GPU-1: run 'third' (process 7) computes there") and "memory may not suffice" in line
    )
    note.write_text("[" * 100_000)
    assert said("mine") == [], "no note"
    mine.remove()


def test_a_run_says_it_when_it_first_needs_engine_or_trainer(
    request_of_mine: RunRequest, other: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with use_view(LiveView()), opened_stages(STORE, Profile()) as stages:
        assert "theirs" not in capsys.readouterr().err
        for _ in range(2):
            assert not stages.ctx.worker_group.running
        assert capsys.readouterr().err.count(f"run 'theirs' (process {other.pid}) computes there") == 1
