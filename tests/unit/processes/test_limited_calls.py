"""Calls with limits: each way to fail has its reason, and the calls beside it return."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import psutil
import pytest

from stages.processes import limited_calls
from stages.processes.limited_calls import LimitedCalls, LoadError
from tests.support.waiting import wait_until

LOAD = "tests.support.unsafe_calls:load"


def made(limit_s: float) -> Iterator[LimitedCalls]:
    pool = LimitedCalls(LOAD, 3, limit_s=limit_s, memory_bytes=256 << 20, workers=2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def calls() -> Iterator[LimitedCalls]:
    yield from made(30.0)


@pytest.fixture(scope="module")
def brief_calls() -> Iterator[LimitedCalls]:
    yield from made(0.5)


@pytest.mark.parametrize(("kind", "value"), [("loop", 0), ("regex", 0), ("sleep", 1000)])
def test_a_call_that_does_not_end_is_ended_and_the_others_return(
    brief_calls: LimitedCalls, kind: str, value: int
) -> None:
    _one_fails(brief_calls, kind, value, "timeout")


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("exit", 3, "crashed: exit code 3"),
        ("exit", 0, "crashed: exit code 0"),
        ("sys_exit", 4, "raised SystemExit: 4"),
        ("signal", signal.SIGKILL, "crashed: SIGKILL"),
        ("segfault", 0, "crashed: SIGSEGV"),
        ("signal", signal.SIGRTMIN + 6, "crashed: signal 40"),
        ("memory", 1 << 31, "out of memory"),
        ("raise", "no\nsuch", "raised ValueError: no such"),
        ("raise", "", "raised ValueError"),
        ("deep", 0, "raised Odd: (its text cannot be made)"),
        ("unsendable", 0, "returned a value that cannot be sent: TypeError: cannot pickle '_thread.lock' object"),
    ],
)
def test_a_failed_call_has_its_reason_and_the_others_return(
    calls: LimitedCalls, kind: str, value: int, reason: str
) -> None:
    _one_fails(calls, kind, value, reason)


def _one_fails(calls: LimitedCalls, kind: str, value: int | str, reason: str) -> None:
    outcomes = calls.map([("times", 1), (kind, value), ("times", 2), ("times", 5)])
    assert [outcome.failure for outcome in outcomes] == [None, reason, None, None]
    assert [outcome.value for outcome in outcomes] == [3, None, 6, 15]


def test_a_process_that_is_stopped_while_it_answers_is_ended(
    brief_calls: LimitedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = limited_calls._Worker._answered

    def then_stopped(worker: limited_calls._Worker, *limits: Any) -> bool:
        found = answered(worker, *limits)
        os.kill(worker._process.pid or 0, signal.SIGSTOP)
        return found

    monkeypatch.setattr(limited_calls._Worker, "_answered", then_stopped)
    assert brief_calls.call("long", "x" * (4 << 20)).failure == "timeout"


def test_endless_recursion_is_an_exception(calls: LimitedCalls) -> None:
    assert (calls.call("recursion", 0).failure or "").startswith("raised RecursionError")


def test_processes_are_kept_between_calls_and_replaced_after_a_crash() -> None:
    pool = LimitedCalls(LOAD, 1, limit_s=30.0, workers=1)
    first = pool.call("pid", 0).value
    assert pool.call("raise", "x").failure
    assert pool.call("pid", 0).value == first
    assert pool.call("exit", 1).failure
    assert pool.call("pid", 0).value != first
    pool.close()


def test_memory_that_earlier_calls_hold_fails_no_other_call() -> None:
    pool = LimitedCalls(LOAD, 1, limit_s=30.0, memory_bytes=256 << 20, workers=1)
    assert pool.call("hold", 160 << 20).failure is None
    assert pool.call("memory", 160 << 20).value == 160 << 20
    assert pool.call("memory", 300 << 20).failure == "out of memory"
    pool.close()


def test_a_process_killed_while_it_was_idle_fails_no_call() -> None:
    pool = LimitedCalls(LOAD, 3, limit_s=30.0, workers=1)
    os.kill(pool.call("pid", 0).value, signal.SIGKILL)
    assert pool.call("times", 2).value == 6
    pool.close()


def test_an_exit_code_is_read_once_while_another_thread_starts_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`multiprocessing` reads it wherever a process starts, too; of two that read at once the second gets nothing."""
    read, reading, started = forkserver.read_signed, threading.Event(), threading.Event()

    def slowly(descriptor: int) -> int:
        numbers.append(descriptor)
        if len(numbers) == 2:  # the first is the process id
            reading.set()
            started.wait(1.0)
        return read(descriptor)

    pool, other = (LimitedCalls(LOAD, 1, limit_s=30.0, workers=1) for _ in range(2))
    numbers, failures = list[int](), list[str | None]()
    thread = threading.Thread(target=lambda: failures.append(pool.call("exit", 3).failure))
    monkeypatch.setattr(forkserver, "read_signed", slowly)
    thread.start()
    assert reading.wait(300.0)
    assert other.call("times", 2).value == 2
    started.set()
    thread.join()
    assert failures == ["crashed: exit code 3"]
    pool.close()
    other.close()


def test_children_of_a_call_end_with_its_process() -> None:
    pool = LimitedCalls(LOAD, 1, limit_s=30.0, workers=1)
    child = psutil.Process(pool.call("child", 0).value)
    pool.close()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 300.0)


@pytest.mark.parametrize(
    ("load", "argument", "reason"),
    [
        (LOAD, -1, "ValueError: a negative factor"),
        ("tests.support.no_such:load", 1, "ModuleNotFoundError: No module named"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_named(load: str, argument: int, reason: str) -> None:
    with pytest.raises(LoadError, match=reason):
        LimitedCalls(load, argument, limit_s=30.0, workers=1).call("times", 1)


@pytest.mark.long
def test_stdout_stays_clean_and_nothing_outlives_a_killed_owner() -> None:
    """The call that outlives its owner is in C and holds Python's lock, so no thread of its process can end it."""
    program = f"""
import os, signal, threading
from stages.processes.limited_calls import LimitedCalls
if __name__ == "__main__":
    pool = LimitedCalls({LOAD!r}, 1, limit_s=0.3, workers=1)
    print(pool.call("pid", 0).value, flush=True)
    pool.call("print", 0)
    threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    pool.call("regex", 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    assert "noise on stdout" in done.stderr
    wait_until(lambda: not psutil.pid_exists(pid), 300.0)
