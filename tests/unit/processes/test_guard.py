"""The guard: nothing that it runs outlives its owner, whatever the order in which processes die."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.processes import guard
from stages.processes.guarded import GuardedProcess

LIMIT_S = 120.0
"""Ends a test that hangs; what the tests start would run for five minutes."""

# A parent with many threads, a child that ignores SIGTERM, a grandchild in a session of its own.
TREE = """
import os, signal, subprocess, sys, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(20):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
nested = "import subprocess, time; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); time.sleep(300)"
other = subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True)
print(os.getpid(), child.pid, other.pid, other.stdout.readline().strip(), flush=True)
time.sleep(300)
"""

# A resource tracker, which the guard spares for a moment, and a user of it that would outlive that moment.
TRACKED = """
import subprocess
user = subprocess.Popen(["sleep", "300"])
print(user.pid, flush=True)
user.wait()
print("the user ended first", flush=True)
"""


def start(scratch: Path, *command: str) -> tuple[subprocess.Popen[str], int]:
    """Run a command under a guard; the guard and the writing end of its lifeline."""
    read, write = os.pipe()
    arguments = [sys.executable, "-I", guard.__file__, str(read), str(scratch), *command]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, pass_fds=(read,), start_new_session=True)
    os.close(read)
    return process, write


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """The processes that still run after some time."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def test_every_descendant_dies_when_the_lifeline_closes(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process, lifeline = start(scratch, sys.executable, "-c", TREE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 4
    assert all(alive(pid) for pid in pids)
    os.close(lifeline)
    assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
    assert wait_gone(pids, 0.0) == []
    assert not scratch.exists()
    process.stdout.close()


def test_all_generations_are_killed_at_once(tmp_path: Path) -> None:
    process, lifeline = start(tmp_path / "none", sys.executable, "-c", TRACKED, "resource_tracker")
    assert process.stdout is not None
    user = int(process.stdout.readline())
    os.close(lifeline)
    assert process.stdout.readline() == "the user ended first\n"
    assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
    assert not alive(user)
    process.stdout.close()


def test_what_a_crashed_command_left_behind_is_killed(tmp_path: Path) -> None:
    process, lifeline = start(tmp_path / "none", sys.executable, "-c", TREE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    os.kill(pids[0], signal.SIGKILL)
    assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
    assert wait_gone(pids, 0.0) == []
    os.close(lifeline)
    process.stdout.close()


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    process, lifeline = start(tmp_path / "none", sys.executable, "-c", TREE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    began = time.monotonic()
    process.terminate()
    process.wait(LIMIT_S)
    assert time.monotonic() - began >= guard.GRACE_S
    assert wait_gone(pids, 0.0) == []
    os.close(lifeline)
    process.stdout.close()


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_handed_on(tmp_path: Path, status: int) -> None:
    process, lifeline = start(tmp_path / "none", sys.executable, "-c", f"raise SystemExit({status})")
    assert process.wait(LIMIT_S) == status
    os.close(lifeline)


def test_the_command_dies_with_its_guard(tmp_path: Path) -> None:
    process, lifeline = start(
        tmp_path / "none", sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    assert wait_gone([pid], LIMIT_S) == []
    os.close(lifeline)
    process.stdout.close()


@pytest.mark.parametrize("victim", ["command", "guard"])
def test_an_exit_code_tells_that_a_signal_ended_it(tmp_path: Path, victim: str) -> None:
    """Whoever asks takes it for an accident, to be tried again, not for a fault of what was given."""
    words = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(300)"]
    with (tmp_path / "log").open("wb") as log:
        process = GuardedProcess(words, tmp_path / "scratch", log, os.environ)
    try:
        while not (said := (tmp_path / "log").read_text().strip()):
            assert process.exit_code() is None
            time.sleep(0.02)
        os.kill(int(said) if victim == "command" else process.pid, signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while (code := process.exit_code()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert code == 128 + signal.SIGKILL
    finally:
        process.kill()


def test_an_owner_may_have_more_than_a_thousand_descriptors(tmp_path: Path) -> None:
    """Such as a process with a connection for each request to its engines, when it starts one of them again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    read, write = os.pipe()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1200), limits[1]))
        high = fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, 1100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(read)
    command = ["sh", "-c", "echo runs; exec sleep 300"]
    arguments = [sys.executable, "-I", guard.__file__, str(high), str(tmp_path / "none"), *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, pass_fds=[high], start_new_session=True) as process:
        os.close(high)
        assert process.stdout is not None and process.stdout.readline() == b"runs\n"
        time.sleep(0.5)
        assert process.poll() is None
        os.close(write)
        assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
