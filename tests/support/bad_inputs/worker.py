"""Tries bad inputs in a process of its own, under limits of memory and time that hold whatever the input does."""

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support.bad_inputs.ground import Ground, made_ground
from tests.support.bad_inputs.trial import WALL_LIMIT_S, Case, Outcome, attempt

MEMORY_BYTES = 2 << 30
"""Memory that the cases may take beyond what the process has before the first of them, children included each."""
_GRACE_S = 10.0
"""Time after the limit in which a case may end by itself, as code in Python does when the alarm rings."""
_START_LIMIT_S = 300.0

Cases = Callable[[Ground], Iterator[Case]]


@dataclass(frozen=True)
class Told:
    """A case in words, because its functions cannot be sent to another process."""

    kind: str
    words: tuple[str, ...]
    told: str


@dataclass(frozen=True)
class Tried:
    """A case and what came of it."""

    case: Told
    outcome: Outcome


@dataclass(frozen=True)
class _Peak:
    """The largest resident memory of the process or a child of it, bytes."""

    size_bytes: int


def tried(cases: Cases, count: int, folder: Path, wall_limit_s: float = WALL_LIMIT_S) -> Generator[Tried, None, int]:
    """Yields the outcome of each case; returns the largest resident memory of a process, in bytes.

    A case that does not end, or ends the process, is a violation; the rest is tried by a new process.

    Args:
        cases: Makes the cases, equal ones each time; a picklable object.
        count: Number of the cases.
        folder: An empty folder.
        wall_limit_s: Seconds after which a case is ended.
    """
    done = starts = peak_bytes = 0
    while done < count:
        (place := folder / str(starts)).mkdir()
        starts += 1
        for item in _from_process(cases, done, place, wall_limit_s):
            if isinstance(item, _Peak):
                peak_bytes = max(peak_bytes, item.size_bytes)
                continue
            done += 1
            yield item
    return peak_bytes


def _from_process(cases: Cases, skipped: int, place: Path, wall_limit_s: float) -> Iterator[Tried | _Peak]:
    """Yields what a new process tries, up to its end; the last is a case that it did not survive, if any."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    arguments = (theirs, cases, skipped, place, wall_limit_s)
    process = multiprocessing.get_context("spawn").Process(target=_work, args=arguments)
    process.start()
    theirs.close()
    case: Told | None = None
    began, limit_s = time.monotonic(), _START_LIMIT_S
    try:
        while True:
            late = not ours.poll(limit_s)
            try:
                item = None if late else ours.recv()
            except EOFError:
                item = None
            match item:
                case Told():
                    case, began, limit_s = item, time.monotonic(), wall_limit_s + _GRACE_S
                case Outcome() if case is not None:
                    yield Tried(case, item)
                    case = None
                case _Peak():
                    yield item
                    return
                case _ if case is None:
                    raise RuntimeError("the process that tries the cases did not begin")
                case _:
                    rule = "no end" if late else "the process died"
                    yield Tried(case, Outcome(None, "", time.monotonic() - began, (rule,)))
                    return
    finally:
        if process.pid is not None:
            with suppress(ProcessLookupError):  # its children too, such as one that reads without an end
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        ours.close()


def _work(pipe: Connection, cases: Cases, skipped: int, place: Path, wall_limit_s: float) -> None:
    os.setsid()
    with made_ground(place) as ground:
        _limit_memory()
        for case in islice(cases(ground), skipped, None):
            pipe.send(Told(case.kind, case.words, case.told))
            pipe.send(attempt(ground, case, wall_limit_s))
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    pipe.send(_Peak(max(peaks) << 10))


def _limit_memory() -> None:
    """Limits the private writable memory of this process, and of each child that it starts."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = (int(status["VmData"].split()[0]) << 10) + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
