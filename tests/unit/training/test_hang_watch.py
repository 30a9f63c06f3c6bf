"""Workers that die, stop or hang, as real processes: noticed soon, and not mistaken for busy ones."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from artifacts.errors import TransientError
from stages.processes.process_pool import start_ticks
from stages.training.job import TrainJob
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hang_watch import HangWatch
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue
from tests.support.jobs import queue_folder, train_job
from tests.support.trainer_processes import command_lines, workers
from tests.support.trees import save_model, tree_batch

ONE = TrainHardware(compute_dtype="fp32", threads=1)
TWO = TrainHardware(compute_dtype="fp32", threads=1, processes=2)
NOTICED_WITHIN_S = 120.0
"""Seven seconds on an idle machine; without the watch nothing would be noticed for 300 s."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch")
    save_model(folder / "model", "Qwen2", tie_word_embeddings=True)
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), folder / "batch.safetensors")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def group(folder: Path) -> Iterator[WorkerGroup]:
    with WorkerGroup(TWO, folder / "group") as group:
        yield group


def endless(folder: Path, hardware: TrainHardware = TWO, **changes: Any) -> TrainJob:
    values: dict[str, Any] = {
        "checkpoint_dir": folder / "model", "batch_file": folder / "batch.safetensors", "hardware": hardware,
        "learning_rates": [0.01] * 20000, "epochs": 10000, "out_checkpoint_dir": folder / "out",
        "events_file": folder / "events.jsonl", **changes,
    }  # fmt: skip
    return train_job(**values)


def noticed(group: WorkerGroup, job: TrainJob, match: str, fault: Callable[[dict[str, Any]], None]) -> float:
    """Runs a job that must fail; the seconds from its fault (or its start) until every process is gone."""
    began: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if not began:
            fault(event)
            if event["event"] == "step":
                began.append(time.monotonic())

    group.start()
    group.wait_until_ready()
    queue, submitted = str(queue_folder(group)), time.monotonic()
    with pytest.raises(TransientError, match=match):
        group.run(job, on_event)
    assert not [line for _, line in command_lines() if queue in line]
    return time.monotonic() - (began or [submitted])[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "match"),
    [(signal.SIGSTOP, "stopped for 5 s"), (signal.SIGKILL, "died|RuntimeError")],
)
def test_a_stopped_and_a_dead_rank_are_noticed(
    folder: Path, group: WorkerGroup, number: signal.Signals, match: str
) -> None:
    def fault(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            os.kill(workers(group)[1], number)

    assert noticed(group, endless(folder), match, fault) < NOTICED_WITHIN_S


@pytest.mark.long
def test_a_rank_that_waits_for_ever_is_noticed(folder: Path) -> None:
    """Its batch is a pipe that nobody writes to, so it neither works nor is it marked as stopped."""
    job = endless(folder, ONE, batch_file=folder / "pipe")
    with WorkerGroup(ONE, folder / "one") as group:
        assert noticed(group, job, "neither progress nor work for 10 s", lambda event: None) < NOTICED_WITHIN_S


SILENT = {
    "computes": ("while True: pass", ""),
    "waits for a child that computes": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])", ""
    ),
    "reads": ("while True: open('/dev/zero', 'rb').read(1 << 20); __import__('time').sleep(0.5)", ""),
    "sleeps": ("__import__('time').sleep(600)", "neither progress nor work for 2 s"),
}  # fmt: skip
"""Programs of which nothing is heard, and the fault that the watch names."""


def test_silence_is_no_hang_where_there_is_work(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with ExitStack() as stack:
        watches: dict[str, HangWatch] = {}
        for name, (code, _) in SILENT.items():
            process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            folder = tmp_path / name.replace(" ", "-")
            folder.mkdir()
            (folder / "pid-0").write_text(f"{boot} {process.pid} {start_ticks(process.pid)}")
            watches[name] = HangWatch(JobQueue(folder), idle_limit_s=2.0)
        faults, began = dict.fromkeys(SILENT, ""), time.monotonic()
        while (silent_s := time.monotonic() - began) < 6.0 or (not faults["sleeps"] and silent_s < 250.0):
            for name, watch in watches.items():
                faults[name] = faults[name] or watch.problem(1.0 + time.monotonic() - began, 300.0)
            time.sleep(0.1)
        assert faults == {name: fault for name, (_, fault) in SILENT.items()}
        assert not any(watch.lost() for watch in watches.values())


def test_silence_at_work_has_its_limit(tmp_path: Path) -> None:
    assert HangWatch(JobQueue(tmp_path)).problem(301.0, 300.0) == "no progress for 300 s"
