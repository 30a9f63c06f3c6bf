"""Two trainer processes on two GPUs, which exchange by NCCL, train as one process does."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from stages.training.results import StepMetrics
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import save_model, tree_batch

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two CUDA devices: NCCL takes one process on each"
)


def trained(folder: Path, processes: int) -> tuple[list[StepMetrics], dict[str, torch.Tensor]]:
    """Returns the metrics of two steps, and the weights after them in float32."""
    hardware = TrainHardware(device="cuda", processes=processes, compute_dtype="fp32", compile=False)
    out = folder / f"{processes}"
    with WorkerGroup(hardware, folder / f"group-{processes}") as group:
        job = train_job(
            checkpoint_dir=folder / "model", batch_file=folder / "batch.safetensors", learning_rates=[0.01] * 2,
            hardware=hardware, out_checkpoint_dir=out / "new", events_file=out / "events.jsonl",
            reference_dir=folder / "model", out_reference_dir=out / "exact", reference_decay=0.0,
        )  # fmt: skip
        return group.run(job).steps, load_file(out / "exact" / "model.safetensors")


def test_two_processes_by_nccl_train_as_one_does(tmp_path: Path) -> None:
    save_model(
        tmp_path / "model", "Qwen2", hidden_size=64, tie_word_embeddings=True
    )  # flex attention: heads of 16 or more
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), tmp_path / "batch.safetensors")
    (expected, weights), (steps, ours) = trained(tmp_path, 1), trained(tmp_path, 2)
    for one, two in zip(expected, steps, strict=True):
        assert two.loss == pytest.approx(one.loss, rel=1e-3, abs=1e-3)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
    for name, tensor in weights.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-3)
