"""Training jobs from flat fields, and folders of worker groups."""

from pathlib import Path
from typing import Any

from stages.training.job import JobPaths, JobSettings, TrainJob
from stages.training.worker_group.group import WorkerGroup


def train_job(**fields: Any) -> TrainJob:
    """Returns a job; each field goes to its settings, its paths or the job itself.

    Later passes repeat the first. The next reference has a decay of 0.99, and none is written without its folder.
    """
    averaged = fields.get("out_reference_dir") is not None
    fields["reference_decay"] = fields.get("reference_decay", 0.99) if averaged else None
    settings = {"epoch_order": "same"} | {name: fields.pop(name) for name in JobSettings.model_fields if name in fields}
    paths = {name: fields.pop(name) for name in JobPaths.model_fields if name in fields}
    return TrainJob(settings=JobSettings(**settings), paths=JobPaths(**paths), **fields)


def queue_folder(group: WorkerGroup) -> Path:
    """Returns the folder of a started group's job files and log."""
    queue = group._queue  # pyright: ignore[reportPrivateUsage]
    assert queue is not None
    return queue.folder
