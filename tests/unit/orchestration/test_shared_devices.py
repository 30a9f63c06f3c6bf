"""A run says which other runs compute on its devices."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.store.store import Store
from flows.config.recipes import load_profile
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
from artifacts.store.store import Store
from flows.orchestration.shared_devices import say_who_computes_here
from stages.context import Profile
from stages.processes.scratch import Scratch
store = Store.open("memory://devices")
say_who_computes_here(Scratch().path, sys.argv[1], store, Profile(), lambda line: print(line, flush=True))
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
    process = subprocess.Popen([sys.executable, "-c", _OTHER, "theirs"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n", "it is alone"
    yield process
    process.kill()
    process.communicate()


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
    assert said("mine", load_profile("cpu", ["gpu_slot=gpu"])) == [], "it has waited for those with a permit"
    assert said("theirs") == [], "the two halves of a run share a machine on purpose"
    other.kill()
    other.wait()
    assert said("mine") == []


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
