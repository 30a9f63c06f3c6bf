"""The job queue of a worker group: a folder with job files, heartbeats and process ids."""

import os
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from stages.processes.process_pool import start_ticks
from stages.training.job import ScoreJob, TrainJob
from stages.training.worker_group.hardware import TrainHardware

_JOBS: TypeAdapter[TrainJob | ScoreJob] = TypeAdapter(TrainJob | ScoreJob)


@cache
def _machine() -> str:
    """Returns an id of this machine since its last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class JobQueue:
    """Numbered job files, and a heartbeat and a process id for each process.

    Args:
        folder: Folder that the owner made, on a disk that all processes see.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def job_file(self, number: int) -> Path:
        """Returns the path at which job `number` (from 0) appears."""
        return self.folder / f"job-{number:06d}.json"

    def submit(self, number: int, job: TrainJob | ScoreJob) -> None:
        """Writes a job file."""
        self._write(self.job_file(number), job.model_dump_json())

    def read(self, number: int) -> TrainJob | ScoreJob:
        """Returns job `number`."""
        return _JOBS.validate_json(self.job_file(number).read_bytes())

    def write_hardware(self, hardware: TrainHardware) -> None:
        """Writes the layout of the worker group for its processes."""
        self._write(self.folder / "hardware.json", hardware.model_dump_json())

    def hardware(self) -> TrainHardware:
        """Returns the layout of the worker group."""
        return TrainHardware.model_validate_json((self.folder / "hardware.json").read_bytes())

    def _write(self, path: Path, text: str) -> None:
        """Writes a file atomically, because other processes read it as soon as it exists."""
        draft = self.folder / f"draft-{path.name}"
        draft.write_text(text)
        draft.replace(path)

    def allow_state(self, number: int) -> None:
        """Lets the workers write the optimizer state of job `number`."""
        self._state_file(number).touch()

    def state_allowed(self, number: int) -> bool:
        """Returns whether the workers may write the optimizer state of job `number`."""
        return self._state_file(number).exists()

    def _state_file(self, number: int) -> Path:
        return self.folder / f"state-{number:06d}"

    def log_file(self, node_rank: int) -> Path:
        """Returns the path of the log of a machine's workers."""
        return self.folder / (f"log-{node_rank}.txt" if node_rank else "log.txt")

    def meeting_file(self) -> Path:
        """Returns the path of the file through which the workers of all machines connect; the first worker makes it."""
        return self.folder / "meeting"

    def agent_file(self, node_rank: int) -> Path:
        """Returns the path of the rendezvous file that torchrun requires; each machine's agent has its own."""
        return self.folder / f"meeting-{node_rank}"

    def announce(self, rank: int) -> None:
        """Writes machine, process id and start time of this process."""
        self._write(self.folder / f"pid-{rank}", f"{_machine()} {os.getpid()} {start_ticks(os.getpid())}")

    def end(self) -> None:
        """Signals to other machines that the worker group has ended."""
        (self.folder / "over").touch()

    def over(self) -> bool:
        """Returns whether the owner has ended the worker group."""
        return (self.folder / "over").exists()

    def owner_heartbeat(self) -> None:
        """Writes the owner's heartbeat for other machines."""
        (self.folder / "owner").touch()

    def last_owner_heartbeat(self) -> int:
        """Returns a number that changes with each heartbeat of the owner, 0 before the first.

        It is not a time (see `heartbeats`).
        """
        path = self.folder / "owner"
        return path.stat().st_mtime_ns if path.exists() else 0

    def announced(self) -> list[int]:
        """Returns the ids of the group's processes that run on this machine."""
        return [pid for pid, runs in self.processes().items() if runs]

    def processes(self) -> dict[int, bool]:
        """Returns the ids of the group's processes that started on this machine, and whether each still runs."""
        running: dict[int, bool] = {}
        for path in self.folder.glob("pid-*"):
            machine, pid, started = path.read_text().split(" ")
            if machine == _machine():
                running[int(pid)] = start_ticks(int(pid)) == int(started)
        return running

    def heartbeat(self, rank: int) -> None:
        """Writes the heartbeat of a process; the first one means that it is ready for jobs."""
        (self.folder / f"heartbeat-{rank}").touch()

    def ready(self, processes: int) -> bool:
        """Returns whether every process has become ready for jobs."""
        return all((self.folder / f"heartbeat-{rank}").exists() for rank in range(processes))

    def heartbeats(self) -> dict[str, int]:
        """Returns a number for each process that changes with each of its heartbeats.

        It is not a time, because the clocks of machines differ, and a clock may be set.
        """
        return {path.name: path.stat().st_mtime_ns for path in self.folder.glob("heartbeat-*")}
