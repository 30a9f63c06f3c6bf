"""Runs a command on one bad input, and names the rules that its answer breaks."""

import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from flows.cli.app import run_command
from tests.support.bad_inputs.ground import Ground

LIMIT_S = 10.0
"""CPU seconds within which a command and the processes that it starts answer."""
WALL_LIMIT_S = 100.0
"""Seconds after which a command is ended, which may have to wait for a core."""
_STARTING = "starting the engine"  # what `solve` says before it looks for the key of an engine


def nothing(folder: Path) -> None:
    """Prepares nothing."""


@dataclass(frozen=True)
class Case:
    """A command line and its bad input.

    Attributes:
        kind: The class of the input.
        words: The command line; a command that starts work also has an argument that it refuses.
        prepare: Makes the files of the case in its folder, in which the command runs.
        stdin: Content of standard input.
        may_succeed: Whether the command only reads, so that it may succeed if the input happens to be valid.
        told: The input, if the words do not show it.
    """

    kind: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None] = nothing
    stdin: bytes = b""
    may_succeed: bool = False
    told: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a case.

    Attributes:
        seconds: CPU seconds, or the time until it was ended.
        violations: Names of the rules that the answer breaks.
    """

    status: int | None
    error: str
    seconds: float
    violations: tuple[str, ...]


class Overdue(BaseException):
    """The command took too long; this is not an `Exception`, so that no command catches it."""


def attempt(ground: Ground, case: Case, wall_limit_s: float = WALL_LIMIT_S) -> Outcome:
    """Runs a case in a fresh folder, and checks its answer."""
    folder = ground.root / "cases" / "case"
    folder.mkdir()
    os.chdir(folder)
    try:
        case.prepare(folder)
        before = _listing(ground)
        status, out, err, seconds = _answer(case, wall_limit_s)
        # A command that succeeds may write its output; `report` writes its page even if something is damaged.
        page = (folder / "store" / "runs" / "made" / "report",) if case.words[:1] == ("report",) else ()
        lasting = page if status else (ground.store, folder)
        left = _changed(before, _listing(ground), lasting)
    finally:
        os.chdir(ground.root / "cases")
        shutil.rmtree(folder)
    return Outcome(status, err, seconds, tuple(_violations(case, status, out, err, seconds, left)))


def _answer(case: Case, wall_limit_s: float) -> tuple[int | None, str, str, float]:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    status: int | None = None
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(case.stdin), encoding="utf-8")
    started = _cpu_s()
    try:
        with _time_limit(wall_limit_s), redirect_stdout(out), redirect_stderr(err):
            status = run_command(case.words)
    except Overdue:
        err.write("error: it took too long\n")
    except (Exception, SystemExit) as error:
        err.write(f"Traceback: {type(error).__name__}: {error}\n")
    finally:
        sys.stdin = stdin
    seconds = _cpu_s() - started
    return status, out.buffer.getvalue().decode(), err.buffer.getvalue().decode(), seconds


def _cpu_s() -> float:
    """Returns the CPU time of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


@contextmanager
def _time_limit(limit_s: float) -> Generator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _violations(case: Case, status: int | None, out: str, err: str, seconds: float, left: list[str]) -> Generator[str]:
    if seconds >= LIMIT_S:
        yield "slow"
    if left:
        yield f"leftover {left[0]}"
    if not out.replace("\n", "").isprintable():
        yield "control characters on stdout"
    if status == 0:
        if not case.may_succeed:
            yield "accepted"
        if "--json" in case.words and not _is_json(out):
            yield "no JSON document"
        return
    if status not in (1, 2):
        yield f"status {status}"
    said = [line for line in err.split("\n") if line != _STARTING]
    if len(said) != 2 or said[1] or not said[0].startswith("error: "):
        yield "not one line"
    if not err.replace("\n", "").isprintable():
        yield "control characters"
    if "internal:" in err:
        yield "internal"
    if "Traceback" in err:
        yield "traceback"
    where, colon, rest = said[0].removeprefix("error: ").partition(": ")
    if 'Command "' in where and " parameter " in where:  # cyclopts names the command and its option, with no colon
        colon = rest = where
    if not (where and colon and rest):
        yield "names no place"
    elif not any(hint in rest for hint in ("; ", "expected", "did you mean", "--help")):
        yield "says not what to do"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _listing(ground: Ground) -> dict[str, tuple[int, int]]:
    """Returns size and time of each watched file and folder, by path; a folder's own time does not count."""
    listed: dict[str, tuple[int, int]] = {}
    for top in ground.watched:
        for parent, folders, names in os.walk(top):
            listed.update({f"{parent}/{name}/": (0, 0) for name in folders})
            for name in names:
                status = os.lstat(f"{parent}/{name}")
                listed[f"{parent}/{name}"] = status.st_size, status.st_mtime_ns
    return listed


def _changed(
    before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], lasting: tuple[Path, ...]
) -> list[str]:
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return sorted(path for path in paths if not path.startswith(tuple(f"{top}/" for top in lasting)))
