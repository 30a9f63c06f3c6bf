"""Ctrl-C and SIGTERM at named moments of tiny runs, each of which the next command continues."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.support.kills_run import VICTIMS, Run
from tests.support.waiting import wait_until

_MOMENT_LIMIT_S = 300.0
"""Seconds without progress after which a moment does not come any more."""
_END_LIMIT_S = 120.0
_LINES = {
    signal.SIGINT: (130, "error: interrupted; the same command continues where it stopped"),
    signal.SIGTERM: (143, "error: terminated; the same command continues where it stopped"),
}


@dataclass
class InterruptedRun(Run):
    """One tiny run that is interrupted again and again.

    Attributes:
        seconds: Seconds from each signal to the end of the command, by moment.
        ended_s: Seconds from each signal to the end of the last of its processes.
        stored_groups: Number of groups of the first iteration that are stored when a command starts.
    """

    log_mode: ClassVar[Literal["ab", "wb"]] = "wb"
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    ended_s: dict[str, float] = field(default_factory=dict[str, float])
    stored_groups: int = 0

    @property
    def log(self) -> str:
        """The output of the present command."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def start(self) -> "subprocess.Popen[bytes]":
        """Starts the command as a shell does in the foreground, where Ctrl-C reaches all processes of its group."""
        self.stored_groups = _stored_groups(self)
        ignored = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job would pass on that it ignores it
        try:
            return super().start()
        finally:
            signal.signal(signal.SIGINT, ignored)

    def interrupt(self, moment: str, number: int, delay_s: float = 0.0) -> None:
        """Starts the command, interrupts it some seconds after a moment, and checks how it ends.

        Raises:
            AssertionError: It ends with another status or more than a line, or leaves processes or old folders.
        """
        before = self.scratch_folders()
        process = self.start()
        reached = MOMENTS[moment]
        wait_until(
            lambda: reached(self, process.pid) or self.over(process, moment),
            _MOMENT_LIMIT_S, self.tail, 0.01, self.progress,
        )  # fmt: skip
        time.sleep(delay_s)
        self.remember()
        assert process.poll() is None, f"over before {moment}: {self.tail()}"
        signalled = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.wait(_END_LIMIT_S)
        self.seconds[moment] = time.monotonic() - signalled
        self.nothing_is_left()
        self.ended_s[moment] = time.monotonic() - signalled
        status, line = _LINES[signal.Signals(number)]
        errors = [text for text in self.log.splitlines() if text.startswith(("error", "Traceback", "Exception"))]
        assert (process.returncode, errors) == (status, [line]), f"{moment}: {process.returncode}, {self.tail()}"
        assert not before & self.scratch_folders(), f"{moment}: the command left older scratch folders"

    def over(self, process: "subprocess.Popen[bytes]", moment: str) -> bool:
        """Fails if the command has ended; returns False otherwise."""
        assert process.poll() is None, f"over before {moment}: {self.tail()}"
        return False

    def complete(self) -> None:
        """Lets the command run to its end, and checks that nothing was lost or repeated or is left.

        Raises:
            AssertionError: It does not finish, or something was lost or is left.
        """
        self.disturb(0)
        self.check(self.digests())
        assert not self.scratch_folders()


def _runs(victim: str) -> Callable[[InterruptedRun, int], bool]:
    return lambda run, pid: any(VICTIMS[victim] in line for line in run.processes().values())


def _logged(stage: str) -> Callable[[InterruptedRun, int], bool]:
    return lambda run, pid: f"\n{stage} " in run.log


def _handles_signals(run: InterruptedRun, pid: int) -> bool:
    lines = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return bool(int(lines["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


def _draws(run: InterruptedRun, pid: int) -> bool:
    return any("forkserver" in line for line in run.processes().values())


def _engine_logs(run: InterruptedRun, pid: int) -> bool:
    return any(path.stat().st_size for path in run.scratch.glob("*/engine/engine.log"))


def _stored_groups(run: InterruptedRun) -> int:
    return sum(path.is_file() for path in run.store.glob("runs/tiny/iterations/0001/rollouts/**/*"))


def _samples(run: InterruptedRun, pid: int) -> bool:
    return _stored_groups(run) > run.stored_groups or _logged("sample-0001")(
        run, pid
    )  # an earlier command may have sampled all


MOMENTS: dict[str, Callable[[InterruptedRun, int], bool]] = {
    "imports": _handles_signals,
    "server start": _runs("Prefect server"),
    "puzzles": _draws,
    "fetch": _logged("prepare"),
    "engine start": _runs("engine"),
    "engine log begins": _engine_logs,
    "trainer start": _runs("torchrun"),
    "trainer rank start": _runs("trainer rank"),
    "wait for the engine": _logged("sft-warm-start"),
    "sample": _samples,
    "grade": _logged("sample-0001"),
    "finetune": _logged("pack-0001"),
    "evaluate": _logged("finetune-0001"),
    "report": _logged("evaluate-test-after"),
}
"""Conditions by the name of the moment at which they become true, in the order of a run."""


def campaign(count: int, scratch: Path, seed: int = 1) -> dict[str, Any]:
    """Interrupts a run at `count` moments, in as many runs as that takes; from the second on, up to 2 s later.

    Returns:
        The longest seconds to the end of the command and to that of its last process, by moment.

    Raises:
        AssertionError: A command ended otherwise than it should, or something was lost or is left.
    """
    generator = random.Random(seed)
    seconds, left_s, done, runs = dict[str, float](), dict[str, float](), 0, 0
    while done < count:
        folder = scratch / f"run-{runs}"
        folder.mkdir()
        run = InterruptedRun(folder, generator)
        for moment in list(MOMENTS)[: count - done]:
            number = generator.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
            prompt = moment in ("grade", "report") or runs == 0  # these would be over later
            run.interrupt(moment, number, 0.0 if prompt else generator.uniform(0.0, 2.0))
            print(f"{moment}: {run.seconds[moment]:.2f} s, {run.ended_s[moment]:.2f} s", file=sys.stderr, flush=True)
            done += 1
        run.complete()
        for longest, found in ((seconds, run.seconds), (left_s, run.ended_s)):
            longest.update({name: max(value, longest.get(name, 0.0)) for name, value in found.items()})
        runs += 1
    return {"interrupts": done, "runs": runs, "seconds": seconds, "left_s": left_s}
