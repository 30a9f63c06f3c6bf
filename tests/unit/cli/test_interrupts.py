"""Ctrl-C and SIGTERM end a command whatever it waits for; the commands here would wait for minutes."""

import signal
import subprocess
import sys

import pytest

_LIMIT_S = 300.0
_PROGRAM = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from flows.cli import app

def ready():
    print("waiting", flush=True)

def lock():
    import polars  # installs a signal handler that restarts system calls
    ready()
    threading.Event().wait()

def solver():
    from stages.environments.logic_puzzles.cp_sat import SolvedModel
    model = SolvedModel()
    model.model.new_bool_var("b")
    model.solve_with([[0]])
    ready()
    threading.Event().wait(600.0)

def pool():
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(1) as threads:
        threads.submit(time.sleep, 600.0)
        ready()

def deaf():
    ready()
    while True:
        try:
            time.sleep(600.0)
        except BaseException:
            pass

def disguised():
    ready()
    try:
        time.sleep(600.0)
    except BaseException as error:
        raise ValueError("Error calling function") from error

def replaced():
    def other(number, frame):  # as Prefect's
        raise ValueError("Task run is not set")
    signal.signal(signal.SIGTERM, other)
    ready()
    time.sleep(600.0)

def thread():
    threading.Thread(target=time.sleep, args=(600.0,)).start()
    threading.Timer(0.2, ready).start()  # the command has ended by then

def changed():
    from flows.cli.console.interrupts import continues_with
    continues_with("with --until 7 instead of --more 3")
    ready()
    time.sleep(600.0)

for command in (lock, solver, pool, deaf, disguised, replaced, thread, changed):
    app.app.command(command)
app.main()
"""


_ENDS: dict[int, tuple[int, str]] = {
    signal.SIGINT: (130, "error: interrupted; the same command continues where it stopped\n"),
    signal.SIGTERM: (143, "error: terminated; the same command continues where it stopped\n"),
}
"""Exit status and output."""


def _told(waits_for: str, number: int, program: str = _PROGRAM) -> tuple[int, str]:
    """Sends a signal to a command that waits; returns its exit status and what it printed on stderr."""
    command = [sys.executable, "-c", program, waits_for]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, errors


@pytest.mark.parametrize(
    ("waits_for", "number"),
    [(name, signal.SIGINT) for name in ("lock", "solver", "pool", "deaf", "disguised", "thread")]
    + [("pool", signal.SIGTERM), ("replaced", signal.SIGTERM)],
)
def test_a_signal_ends_a_command_with_one_line(waits_for: str, number: int) -> None:
    assert _told(waits_for, number) == _ENDS[number]


def test_a_command_may_continue_with_a_change() -> None:
    status, line = _ENDS[signal.SIGINT]
    changed = line.replace("same command", "same command with --until 7 instead of --more 3")
    assert _told("changed", signal.SIGINT) == (status, changed)


def test_a_background_job_goes_on_ignoring_ctrl_c() -> None:
    program = _PROGRAM.replace("default_int_handler", "SIG_IGN")
    with subprocess.Popen([sys.executable, "-c", program, "lock"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)  # Python would handle it before the other one
        process.send_signal(signal.SIGTERM)
        assert process.wait(_LIMIT_S) == 143


def test_a_signal_at_the_very_start_ends_a_command_with_one_line() -> None:
    """It comes while the thread that watches the signals starts, which waits for a lock."""
    program = _PROGRAM.replace(
        "app.main()",
        """
start = threading.Thread.start
def interrupted(thread):
    start(thread)
    if thread.name == "signal-watch":
        signal.raise_signal(signal.SIGINT)
threading.Thread.start = interrupted
app.main()
""",
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "lock"], capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    assert (ended.returncode, ended.stderr) == _ENDS[signal.SIGINT]


def test_a_signal_that_is_being_read_is_told_as_one() -> None:
    """The watching thread has taken it off the pipe; the main thread asks before it is noted."""
    program = _PROGRAM.replace(
        "app.main()",
        """
import os
read = os.read
def slow(*arguments):
    taken = read(*arguments)
    time.sleep(0.3)
    return taken
os.read = slow
app.main()
""",
    )
    assert _told("replaced", signal.SIGTERM, program) == _ENDS[signal.SIGTERM]
