"""Folders of killed processes go with the next command; those of living ones and of others stay."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.app import run_command
from stages.processes import scratch
from stages.processes.scratch import Scratch, own, scratch_folder, sweep
from tests.support.waiting import wait_until

_OWNER = "import time; from stages.processes.scratch import Scratch; print(Scratch().path, flush=True); time.sleep(600)"
_WITH_CHILD = """
import subprocess, sys, time
from stages.processes.scratch import Scratch
scratch = Scratch()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=[scratch.lock])
print(scratch.path, child.pid, flush=True)
time.sleep(600)
"""
_POOL = """
import time
from stages.processes.process_pool import Pool
pool = Pool(1)
print(pool.map(abs, [-1], chunksize=1), flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The machine's folder for temporary files, for this process and those that it starts; short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        _use(Path(folder), monkeypatch)
        yield Path(folder)


def _use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def _started(code: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_the_folder_of_a_killed_process_goes_with_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    process, told = _started(_OWNER)
    folder = Path(told)
    (folder / "downloads").mkdir()
    (folder / "downloads" / "model").write_bytes(b"x")
    sweep()
    assert (folder / "downloads" / "model").exists(), "its owner lives"
    os.kill(process.pid, signal.SIGSTOP)
    sweep()
    assert folder.exists(), "and so does one that is held"
    _killed(process)
    assert folder.exists()
    assert run_command(["recipes", "--json"]) == 0
    assert not folder.exists()


def test_a_child_that_outlives_its_parent_keeps_the_folder() -> None:
    process, told = _started(_WITH_CHILD)
    folder, child = Path(told.split()[0]), int(told.split()[1])
    process.kill()
    process.wait()
    try:
        sweep()
        assert folder.exists()
    finally:
        os.kill(child, signal.SIGKILL)
    process.communicate()  # its end of the pipe is closed: it is gone
    wait_until(lambda: (sweep(), not folder.exists())[1], 120.0, poll_s=0.05)


def test_sockets_of_a_killed_process_pool_go_too(temporary: Path) -> None:
    process, told = _started(_POOL)
    assert told == "[1]"
    (folder,) = temporary.glob("pymp-*")
    sweep()
    assert folder.exists()
    _killed(process)
    sweep()
    assert not folder.exists()


def test_a_folder_of_sockets_is_not_below_a_long_temporary_folder_and_goes_too(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes addresses of 107 bytes; TMPDIR may be longer. vLLM names its sockets by a UUID."""
    long = temporary / ("long-" * 20)
    long.mkdir()
    _use(long, monkeypatch)
    process, told = _started(_OWNER.replace("Scratch()", "Scratch(sockets=True)"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{told}/{uuid.uuid4()}")
    sweep()
    assert Path(told).exists()
    _killed(process)
    sweep()
    assert not Path(told).exists()
    folder = Scratch()
    assert folder.path.parent == long
    folder.remove()


def test_what_is_not_ours_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = temporary / "outside"
    outside.mkdir()
    os.close(own(outside))
    (temporary / "deerstalker-link").symlink_to(outside)
    earlier = temporary / "deerstalker-of-an-earlier-version"
    earlier.mkdir()
    elsewhere = temporary / "deerstalker-of-another-machine"
    elsewhere.mkdir()
    os.close(own(elsewhere))
    (elsewhere / ".owner").write_bytes(b"another boot")
    theirs = temporary / "deerstalker-of-another-user"
    theirs.mkdir()
    os.close(own(theirs))
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        sweep()
    assert theirs.exists()
    sweep()
    assert sorted(path.name for path in temporary.iterdir()) == [
        "deerstalker-link", "deerstalker-of-an-earlier-version", "deerstalker-of-another-machine", "outside",
    ]  # fmt: skip


def test_a_sweep_follows_no_link_out_of_a_folder(temporary: Path) -> None:
    (temporary / "thesis").mkdir()
    (temporary / "thesis" / "text").write_text("years of work")
    left = temporary / "deerstalker-left"
    left.mkdir()
    os.close(own(left))
    (left / "link").symlink_to(temporary / "thesis")
    sweep()
    assert [path.name for path in temporary.rglob("*")] == ["thesis", "text"]


def test_logs_that_an_error_names_stay_for_a_week(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Scratch()
    (kept.path / "engine").mkdir()
    (kept.path / "engine" / "engine.log").write_text("why it died")
    (kept.path / "engine" / "empty.log").touch()
    (kept.path / "model.safetensors").write_bytes(b"large")
    kept.remove_all_but_logs()
    sweep()
    names = {path.name for path in kept.path.rglob("*") if path.is_file()}
    assert names == {"engine.log", ".owner"}
    monkeypatch.setattr(scratch.time, "time", lambda: time.time_ns() / 1e9 + 8 * 24 * 3600)
    sweep()
    assert list(temporary.iterdir()) == []


def test_without_a_log_nothing_stays(temporary: Path) -> None:
    refused = Scratch()
    (refused.path / "downloads").mkdir()
    refused.remove_all_but_logs()
    with scratch_folder() as folder:
        (folder / "x").touch()
    assert list(temporary.iterdir()) == []


def test_a_folder_whose_lock_cannot_be_written_goes_at_once(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may become full in between; without an owner the folder would stay for ever."""

    def full() -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scratch, "_machine", full)
    with pytest.raises(OSError, match="No space left"):
        Scratch()
    assert not list(temporary.iterdir())
