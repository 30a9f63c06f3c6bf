"""Writes the state of a job between two optimizer steps, and continues a job from it in another worker group."""

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from artifacts.errors import BadInputError
from stages.training.checkpointing.full_disk import full_disk_reported
from stages.training.job import TrainJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.results import StepMetrics
from stages.training.trainer import Trainer

STATE_FOLDER = "state"
NUMBERS_FILE = "numbers.safetensors"
START_FILE = "start.safetensors"
STEPS_FILE = "steps.json"


class StepCheckpoints:
    """Decides when a step checkpoint is due, and writes it.

    Args:
        job: The job, which names the inbox and, in its hardware, the interval.
        weights: The weights that are trained.
        trainer: The source of the numbers that were computed before the first step.
        start: Sample of the starting weights.
    """

    def __init__(self, job: TrainJob, weights: TrainedWeights, trainer: Trainer, start: dict[str, Tensor]) -> None:
        self._inbox, self._every_s = job.paths.step_checkpoints_dir, job.hardware.checkpoint_every_s
        self._weights, self._trainer, self._start = weights, trainer, start
        self._written_at = time.monotonic()

    def due(self) -> bool:
        """Returns whether the interval is over and the owner has emptied the inbox (collective)."""
        if self._inbox is None or self._every_s is None:
            return False
        mine = time.monotonic() - self._written_at >= self._every_s and not any(self._inbox.iterdir())
        decision = torch.tensor(int(mine))
        dist.broadcast(decision, 0)
        return bool(decision)

    def write(self, steps: list[StepMetrics]) -> Path:
        """Writes a step checkpoint into the inbox (collective).

        Args:
            steps: Metrics of all steps so far.

        Returns:
            The folder of the step checkpoint.

        Raises:
            DiskFullError: The disk is full.
        """
        assert self._inbox is not None
        folder = self._inbox / f"step-{len(steps):06d}"
        with full_disk_reported(self._weights, self._inbox):
            self._weights.save_state(folder / STATE_FOLDER)
            numbers = self._trainer.kept_numbers()
            if dist.get_rank() == 0:
                save_file(numbers, folder / NUMBERS_FILE)
                save_file(self._start, folder / START_FILE)
                (folder / STEPS_FILE).write_text(json.dumps([step.model_dump() for step in steps]))
        self._written_at = time.monotonic()
        return folder


def resume(
    folder: Path, weights: TrainedWeights, trainer: Trainer, checkpoint: Path
) -> tuple[list[StepMetrics], dict[str, Tensor]]:
    """Restores weights, optimizer, the objective's numbers and skipped steps from a step checkpoint (collective).

    Args:
        folder: The step checkpoint.
        checkpoint: The checkpoint from which the job began.

    Returns:
        Metrics of the steps that were taken before, and the sample of the starting weights.

    Raises:
        BadInputError: The folder is not a step checkpoint of this job.
    """
    weights.load_state(folder / STATE_FOLDER, checkpoint)
    trainer.restore_numbers(load_file(folder / NUMBERS_FILE), str(folder / NUMBERS_FILE))
    try:
        steps = [StepMetrics.model_validate(step) for step in json.loads((folder / STEPS_FILE).read_text())]
    except ValueError as error:
        raise BadInputError(str(folder / STEPS_FILE), f"unreadable ({error})", "metrics of the steps done") from error
    trainer.skipped = [step.step for step in steps if step.skipped]
    return steps, load_file(folder / START_FILE)
