"""A gradient that is not finite costs its optimizer step, and ends the job where it happens too often."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from artifacts.errors import BadInputError
from artifacts.identity import canonical_json
from stages.models.shape import read_shape
from stages.training.checkpointing.step_checkpoint import StepCheckpoints, resume
from stages.training.job import OptimizerConfig, TrainJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.results import StepMetrics
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import VOCAB, tree_batch

CPU = torch.device("cpu")
ONE = TrainHardware(compute_dtype="fp32", threads=1, checkpoint_every_s=0.0)
TWO = TrainHardware(compute_dtype="fp32", threads=1, processes=2)


def columns(*overflowing: int) -> dict[str, NDArray[Any]]:
    """Four mini-batches of two rows; in some the advantages are finite, and what the loss makes of them is not."""
    batch = tree_batch(3, [2, 1, 1, 2, 1, 1, 2, 1], steps=4)
    for step in overflowing:
        rows = (batch["minibatch"] == step)[:, None] & (batch["completion_mask"] > 0)
        batch["advantages"][rows] = np.finfo(np.float32).max
    return batch


def job(folder: Path, checkpoint: Path, batch: dict[str, NDArray[Any]], **changes: Any) -> TrainJob:
    folder.mkdir(exist_ok=True)
    save_file(batch, folder / "batch.safetensors")
    return train_job(
        **{
            "checkpoint_dir": checkpoint, "batch_file": folder / "batch.safetensors",
            "learning_rates": [0.01] * (int(batch["minibatch"].max()) + 1), "hardware": ONE,
            "out_checkpoint_dir": folder / "out", "events_file": folder / "events.jsonl", **changes,
        }
    )  # fmt: skip


def trainer_of(job: TrainJob, *, sharded: bool = False) -> tuple[TrainedWeights, Trainer]:
    weights = TrainedWeights(read_shape(job.paths.checkpoint_dir), job.hardware, CPU, sharded)
    weights.load_checkpoint(job.paths.checkpoint_dir)
    return weights, Trainer(weights, job, TrainerBatch(job.paths.batch_file, VOCAB), lambda: None)


def masters(weights: TrainedWeights) -> list[torch.Tensor]:
    return [p.full_tensor() if weights.sharded else p for p in weights.masters.values()]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("sharded", [False, True])
def test_the_other_steps_are_those_of_a_batch_without_it(checkpoint: Path, tmp_path: Path, sharded: bool) -> None:
    weights, trainer = trainer_of(job(tmp_path / "whole", checkpoint, columns(1)), sharded=sharded)
    steps = [trainer.step(number, rows, 4) for number, rows in trainer.steps()]
    assert [step.skipped for step in steps] == [False, True, False, False]
    assert trainer.skipped == [2]
    assert steps[1].grad_norm is None and steps[1].loss is None and steps[1].policy_loss is None
    assert steps[1].entropy and steps[1].ratio_max, "what is finite is kept"
    canonical_json([step.model_dump() for step in steps])  # refuses NaN
    canonical_json([StepMetrics.model_validate_json(step.model_dump_json()).model_dump() for step in steps])

    without = {name: column[columns()["minibatch"] != 1] for name, column in columns().items()}
    without["minibatch"] = np.array([0, 0, 1, 1, 2, 2], np.int32)
    fewer, trainer = trainer_of(job(tmp_path / "fewer", checkpoint, without), sharded=sharded)
    for number, rows in trainer.steps():
        trainer.step(number, rows, 3)
    assert all(torch.equal(a, b) for a, b in zip(masters(weights), masters(fewer), strict=True))


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(
    ("most", "overflowing", "message"),
    [
        (0, [2], r"optimizer step 3 of 4: the norm of its gradient is (inf|nan); expected a finite number; try"),
        (
            2,
            [0, 1, 3],
            r"optimizer step 4 of 4: the norm of its gradient is (inf|nan), and 2 steps before it were skipped for "
            r"the same reason: \[1, 2\]; expected .*, except in at most 2 steps \(optimizer\.max_skipped_steps\)",
        ),
    ],
)
def test_too_many_end_the_job(
    checkpoint: Path, tmp_path: Path, most: int, overflowing: list[int], message: str
) -> None:
    config = OptimizerConfig(max_skipped_steps=most)
    _, trainer = trainer_of(job(tmp_path / "job", checkpoint, columns(*overflowing), optimizer=config))
    plan = trainer.steps()
    for number, rows in plan[: overflowing[-1]]:
        trainer.step(number, rows, 4)
    with pytest.raises(BadInputError, match=message):
        trainer.step(*plan[overflowing[-1]], 4)


@pytest.mark.usefixtures("world_of_one")
def test_skipped_steps_are_counted_over_a_resumption(checkpoint: Path, tmp_path: Path) -> None:
    inbox, config = tmp_path / "inbox", OptimizerConfig(max_skipped_steps=1)
    inbox.mkdir()
    whole = job(tmp_path / "job", checkpoint, columns(1, 3), step_checkpoints_dir=inbox, optimizer=config)
    weights, trainer = trainer_of(whole)
    plan = trainer.steps()
    steps = [trainer.step(number, rows, 4) for number, rows in plan[:2]]
    folder = StepCheckpoints(whole, weights, trainer, weights.sample()).write(steps)
    assert json.loads((folder / "steps.json").read_text())[1]["skipped"] is True
    weights, trainer = trainer_of(whole)
    assert resume(folder, weights, trainer, folder)[0] == steps
    assert trainer.skipped == [2]
    assert not trainer.step(*plan[2], 4).skipped
    with pytest.raises(BadInputError, match="1 steps before it were skipped"):
        trainer.step(*plan[3], 4)


@pytest.mark.release
def test_two_processes_agree(checkpoint: Path, tmp_path: Path) -> None:
    """One row of the mini-batch overflows: only one of the processes has it."""
    batch = columns()
    row = int(np.flatnonzero(batch["minibatch"] == 1)[0])
    batch["advantages"][row][batch["completion_mask"][row] > 0] = np.finfo(np.float32).max
    events: list[dict[str, Any]] = []
    with WorkerGroup(TWO, tmp_path / "group") as group:
        result = group.run(job(tmp_path / "job", checkpoint, batch, hardware=TWO), events.append)
    assert [step.skipped for step in result.steps] == [False, True, False, False]
    assert result.steps[1].grad_norm is None
    assert all(step.grad_norm and step.loss is not None for step in result.steps if not step.skipped)
    canonical_json(events)
