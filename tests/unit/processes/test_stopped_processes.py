"""Processes that a signal holds are told from those that are slow."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator

import pytest

from stages.processes.stopped_processes import LOOK_INTERVAL_S, STOPPED_LIMIT_S, StoppedProcessWatch, session_processes
from tests.support.processes import in_session

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


@pytest.fixture
def session() -> Generator[int]:
    """A process with a child, in a session of their own."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], start_new_session=True)
    while len(in_session(process.pid)) < 2:
        time.sleep(0.05)
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.long
def test_a_child_that_is_stopped_is_held_and_a_sleeping_one_is_not(session: int) -> None:
    watch = StoppedProcessWatch(lambda: session_processes(session))
    ended: list[float] = []
    with watch.ending(lambda: ended.append(time.monotonic())):
        time.sleep(2 * LOOK_INTERVAL_S)
        assert not watch.stopped_for_long() and not ended
        (child,) = set(in_session(session)) - {session}
        os.kill(child, signal.SIGSTOP)
        stopped = time.monotonic()
        while not ended and time.monotonic() < stopped + 300:
            time.sleep(0.1)
    assert len(ended) == 1 and ended[0] - stopped >= STOPPED_LIMIT_S - LOOK_INTERVAL_S
    assert watch.stopped_for_long()
    os.kill(child, signal.SIGCONT)
    time.sleep(2 * LOOK_INTERVAL_S)
    assert not watch.stopped_for_long()
    assert "held-watch" not in {thread.name for thread in threading.enumerate()}
