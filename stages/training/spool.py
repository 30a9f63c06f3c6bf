"""The folder through which a gang gets its jobs and shows that it is alive."""

import os
from functools import cache
from pathlib import Path

from stages.processes import start_ticks
from stages.training.job import TrainHardware, TrainJob


@cache
def _machine() -> str:
    """Names this machine since its last start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Spool:
    """Job files by number, a heartbeat and a pid a process.

    Args:
        folder: made by the owner, on a disk that all processes see.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def job_file(self, number: int) -> Path:
        """Where job `number` (from 0) appears."""
        return self.folder / f"job-{number:06d}.json"

    def submit(self, number: int, job: TrainJob) -> None:
        """Puts a job in, whole or not at all."""
        draft = self.folder / "draft"
        draft.write_text(job.model_dump_json())
        draft.replace(self.job_file(number))

    def write_hardware(self, hardware: TrainHardware) -> None:
        """Leaves the layout of the gang for its processes."""
        (self.folder / "hardware.json").write_text(hardware.model_dump_json())

    def hardware(self) -> TrainHardware:
        """The layout of the gang."""
        return TrainHardware.model_validate_json((self.folder / "hardware.json").read_bytes())

    def log_file(self, node_rank: int) -> Path:
        """What the workers of a machine print."""
        return self.folder / (f"log-{node_rank}.txt" if node_rank else "log.txt")

    def meeting_file(self) -> Path:
        """Where the worker processes of all machines find one another; the first makes it."""
        return self.folder / "meeting"

    def agent_file(self, node_rank: int) -> Path:
        """The rendezvous of a machine's agent, which has no other to meet."""
        return self.folder / f"meeting-{node_rank}"

    def announce(self, rank: int) -> None:
        """Records the machine and the pid of a process, with its start time."""
        draft = self.folder / f"draft-{rank}"
        draft.write_text(f"{_machine()} {os.getpid()} {start_ticks(os.getpid())}")
        draft.replace(self.folder / f"pid-{rank}")

    def end(self) -> None:
        """Tells other machines that the gang is over."""
        (self.folder / "over").touch()

    def over(self) -> bool:
        """Whether the owner ended the gang."""
        return (self.folder / "over").exists()

    def owner_beat(self) -> None:
        """Shows other machines that the owner is there."""
        (self.folder / "owner").touch()

    def last_owner_beat(self) -> int:
        """Changes with each beat of the owner; clocks of machines differ, so only a change means something."""
        path = self.folder / "owner"
        return path.stat().st_mtime_ns if path.exists() else 0

    def announced(self) -> list[int]:
        """Pids of this gang's processes that still run on this machine."""
        return [pid for pid, runs in self.processes().items() if runs]

    def processes(self) -> dict[int, bool]:
        """Pids of this gang's processes on this machine that began, and whether they still run."""
        found: dict[int, bool] = {}
        for path in self.folder.glob("pid-*"):
            machine, pid, started = path.read_text().split(" ")
            if machine == _machine():
                found[int(pid)] = start_ticks(int(pid)) == int(started)
        return found

    def beat(self, rank: int) -> None:
        """Shows progress of a process; the first beat says that it is ready."""
        (self.folder / f"beat-{rank}").touch()

    def ready(self, processes: int) -> bool:
        """Whether every process waits for jobs."""
        return all((self.folder / f"beat-{rank}").exists() for rank in range(processes))

    def last_beat_s(self) -> float:
        """Time of the newest beat (seconds since the epoch), 0 before the first."""
        return max((path.stat().st_mtime for path in self.folder.glob("beat-*")), default=0.0)
