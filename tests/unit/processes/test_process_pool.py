"""The pool of processes: what threads that share it see when processes die, and when it is ended."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.forkserver import _forkserver  # pyright: ignore
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path

import pytest

from artifacts.errors import DeerstalkerError, TransientError
from stages.processes.process_pool import Pool
from stages.processes.scratch import sweep

ITEMS = list(range(-40, 0))
LIMIT_S = 300.0
"""Ends a test that hangs."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


def slow_abs(number: int) -> int:
    time.sleep(0.01)
    return abs(number)


def test_threads_that_try_again_after_a_death_all_end(pool: Pool) -> None:
    results: list[object] = []

    def work() -> None:
        while True:
            try:
                return results.append(pool.map(slow_abs, ITEMS, chunksize=4))
            except TransientError:
                continue
            except BaseException as error:
                return results.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.5)
        for child in multiprocessing.active_children():
            child.kill()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == [[abs(number) for number in ITEMS]] * len(threads)


def test_threads_of_an_ended_pool_fail_soon_and_start_nothing(pool: Pool) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            pool.map(slow_abs, range(100_000), chunksize=1000)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not multiprocessing.active_children():
        time.sleep(0.01)
    pool.kill()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert not isinstance(failures[0], TransientError)
    with pytest.raises(DeerstalkerError, match="after its end"):
        pool.map(slow_abs, ITEMS, chunksize=1)
    for child in multiprocessing.active_children():
        child.join(LIMIT_S)
    assert multiprocessing.active_children() == []


def long_text(number: int) -> str:
    return str(number) * 400_000


def test_a_process_killed_while_it_sends_a_result_is_a_death_like_any_other(pool: Pool) -> None:
    """Half of its result has come; the other half never will."""
    ended: list[str] = []

    def work() -> None:
        try:
            while True:
                pool.map(long_text, range(16), chunksize=1)
        except TransientError:
            ended.append("died")

    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + LIMIT_S
        while thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.3)
            for child in multiprocessing.active_children():
                child.kill()
        assert not thread.is_alive()
    assert ended == ["died"] * 5


def test_a_process_that_died_at_rest_is_replaced(pool: Pool) -> None:
    assert pool.map(abs, [-1], chunksize=1) == [1]
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    assert pool.map(abs, [-2], chunksize=1) == [2]


def failing(number: int) -> int:
    raise ValueError(number)


def unsendable(number: int) -> object:
    return lambda: number


def test_what_work_raises_is_raised_and_names_its_line(pool: Pool) -> None:
    with pytest.raises(ValueError, match="1") as raised:
        pool.map(failing, [1], chunksize=1)
    assert any("in failing" in note for note in raised.value.__notes__)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pool.map(unsendable, [1], chunksize=1)
    assert pool.map(abs, [-1], chunksize=1) == [1]


def test_a_closed_pool_starts_again(pool: Pool) -> None:
    assert pool.map(abs, [-1], chunksize=1) == [1]
    pool.close()
    assert pool.map(abs, [-2], chunksize=1) == [2]


def test_without_a_number_a_pool_has_a_process_for_each_core_it_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert (Pool(None).workers, Pool(3).workers) == (1, 3)
    finally:
        os.sched_setaffinity(0, allowed)
    assert Pool(None).workers == len(allowed)


def test_a_pool_starts_below_a_long_temporary_folder(tmp_path: Path) -> None:
    """The address of the fork server's socket has a largest length, and TMPDIR has none."""
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    code = (
        "from stages.processes.process_pool import Pool; import tempfile\n"
        "pool = Pool(1); print(pool.map(abs, [-1], chunksize=1), tempfile.gettempdir()); pool.close()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (f"[1] {folder}", 0), done.stderr


def _use_a_pool_and_die() -> None:
    Pool(1).map(abs, [-1], chunksize=1)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("process", [SpawnProcess, ForkServerProcess])
def test_the_end_of_a_child_that_had_a_pool_leaves_the_pool_of_its_parent_alone(
    pool: Pool, process: type[BaseProcess]
) -> None:
    """The child is told the folder of its parent's sockets; it must not become the folder's owner, which then dies."""
    assert pool.map(abs, [-1], chunksize=1) == [1]
    child = process(target=_use_a_pool_and_die)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    sweep()
    assert Path(get_temp_dir()).is_dir()
    new = Pool(1)
    assert new.map(abs, [-1], chunksize=1) == [1]
    new.close()


def test_ctrl_c_is_blocked_while_the_interpreter_of_the_fork_server_starts(pool: Pool) -> None:
    """Otherwise the server prints a traceback below the line of the command."""
    pool.map(abs, [-1], chunksize=1)
    pid = _forkserver._forkserver_pid  # pyright: ignore
    lines = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    assert int(lines["SigBlk"], 16) >> (signal.SIGINT - 1) & 1
