"""Masters, gradients and moments in bf16: what is kept, how little of small steps stays, and states of both kinds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import save_file as save_batch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from stages.models.shape import read_shape
from stages.models.tensors import WEIGHTS
from stages.training.job import Dtype, OptimizerConfig
from stages.training.model.master_weights import TrainedWeights
from stages.training.rounding import SPREAD, moved_share, step_warning
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")

CPU = torch.device("cpu")
RATE = 6e-6
STEPS, ITERATIONS = 16, 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose weights are as large as those of a real one."""
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "Qwen2", tie_word_embeddings=True)
    draw = torch.Generator().manual_seed(0)
    weights = load_file(folder / WEIGHTS)
    drawn = {
        name: tensor if "norm" in name else (SPREAD * torch.randn(tensor.shape, generator=draw)).bfloat16()
        for name, tensor in weights.items()
    }
    save_file(drawn, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def built(checkpoint: Path, dtype: Dtype, *, sharded: bool = False, compute: Dtype = "bf16") -> TrainedWeights:
    hardware = TrainHardware(compute_dtype=compute)
    weights = TrainedWeights(read_shape(checkpoint), hardware, CPU, sharded, master_dtype=dtype)
    weights.load_checkpoint(checkpoint)
    return weights


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def moved_by_simulated_steps(checkpoint: Path, folder: Path, dtype: Dtype) -> float:
    """The share of a checkpoint's weights that five iterations of 16 AdamW steps move, each from what the one before
    published; gradients are a signal that stays and noise of 1 / 0.3 its size."""
    draw = torch.Generator().manual_seed(1)
    weights = built(checkpoint, dtype)
    signals = {name: 0.3 * torch.randn(p.shape, generator=draw) for name, p in weights.masters.items()}
    config = OptimizerConfig(betas=(0.9, 0.99), weight_decay=0.1, max_grad_norm=None, master_dtype=dtype)
    start = checkpoint
    for iteration in range(ITERATIONS):
        weights.load_checkpoint(start)
        for _ in range(STEPS):
            for name, p in weights.masters.items():
                p.grad = (signals[name] + torch.randn(p.shape, generator=draw)).to(p.dtype)
            weights.step(config, RATE, weights.gradient_norm())
        start = folder / f"{dtype}-{iteration}"
        weights.save_checkpoint(checkpoint, start)
    before, after = (load_file(path / WEIGHTS) for path in (checkpoint, start))
    matrices = [name for name in before if "norm" not in name]
    moved = sum(int((before[name] != after[name]).sum()) for name in matrices)
    return moved / sum(before[name].numel() for name in matrices)


def test_far_fewer_weights_move_than_with_fp32_masters(checkpoint: Path, tmp_path: Path) -> None:
    """A larger simulation gave 7.7% and 66% with the rate of the `openpipe_*` recipes."""
    rounded, exact = (moved_by_simulated_steps(checkpoint, tmp_path, dtype) for dtype in ("bf16", "fp32"))
    assert rounded == pytest.approx(0.077, abs=0.02)
    assert exact == pytest.approx(0.66, abs=0.1)


def test_the_share_that_is_warned_of_agrees_with_the_simulation() -> None:
    """bf16 masters are rounded at each step; one of 6e-6 reaches the weights below 2^-9: erf(2^-9 / .02 / 2^.5)."""
    assert moved_share(RATE) == pytest.approx(0.0778, abs=1e-4)
    assert moved_share(RATE * STEPS) > 0.5 and step_warning(RATE * STEPS) is None
    each = step_warning(RATE)
    assert each and "after each optimizer step" in each and "about 8%" in each and "master_dtype = 'fp32'" in each


def test_a_number_between_two_of_bf16_moves_when_half_the_way_is_reached() -> None:
    """Around 2^-6 numbers of bf16 lie 2^-13 apart: the rule's bound, tried out."""
    weight = torch.tensor(1.25 * 2**-6).bfloat16()
    for update, moves in ((0.49 * 2**-13, False), (0.51 * 2**-13, True)):
        assert bool((weight.float() + update).bfloat16() != weight) == moves
    below, above = moved_share(0.99 * 2**-14), moved_share(1.01 * 2**-14)
    at = torch.erf(torch.tensor([2**-6, 2**-5]) / (SPREAD * 2**0.5)).tolist()
    assert [below, above] == pytest.approx(at), "from 2^-14 on also the weights between 2^-6 and 2^-5"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("compute", ["bf16", "fp32"])
def test_all_that_is_kept_is_bf16(checkpoint: Path, tmp_path: Path, sharded: bool, compute: Dtype) -> None:
    weights = built(checkpoint, "bf16", sharded=sharded, compute=compute)
    metrics = trained(weights, checkpoint, tmp_path, hardware=TrainHardware(compute_dtype=compute))
    assert all(step.grad_norm for step in metrics) and not any(step.skipped for step in metrics)
    for name, p in weights.policy.named_parameters():
        master = weights.masters[name]
        moments = weights.optimizer.state[master]
        assert {master.dtype, moments["exp_avg"].dtype, moments["exp_avg_sq"].dtype} == {torch.bfloat16}
        assert (p is master) == (sharded or compute == "bf16"), "one copy where the model can compute with the masters"
    like = built(checkpoint, "fp32", sharded=sharded, compute=compute)
    exact = trained(like, checkpoint, tmp_path, hardware=TrainHardware(compute_dtype=compute))
    assert metrics[0].loss == pytest.approx(exact[0].loss, abs=1e-6), "the first forward pass is the same"
    assert metrics[0].grad_norm == pytest.approx(exact[0].grad_norm, rel=0.05)


def trained(weights: TrainedWeights, checkpoint: Path, folder: Path, **changes: Any) -> list[Any]:
    """Metrics of two steps; some rows are micro-batches of their own, whose gradients are added up."""
    save_batch(tree_batch(2, [2, 1, 2], steps=2), folder / "batch.safetensors")
    job = train_job(
        checkpoint_dir=checkpoint, batch_file=folder / "batch.safetensors", learning_rates=[0.01] * 2,
        optimizer=OptimizerConfig(eps=1e-3, master_dtype=weights.master_dtype),
        out_checkpoint_dir=folder / "out", events_file=folder / "events.jsonl", **changes,
    )  # fmt: skip
    trainer = Trainer(weights, job, TrainerBatch(job.paths.batch_file, VOCAB), lambda: None)
    return [trainer.step(number, rows, 2) for number, rows in trainer.steps()]


def tensors(weights: TrainedWeights) -> dict[str, torch.Tensor]:
    """Masters and moments by name."""
    tensors: dict[str, torch.Tensor] = {}
    for name, p in weights.masters.items():
        tensors[name] = whole(p).clone()
        tensors |= {f"{key}.{name}": whole(moment).clone() for key, moment in weights.optimizer.state[p].items()}
    return tensors


@pytest.mark.parametrize(("saved", "loaded"), [("bf16", "bf16"), ("fp32", "bf16"), ("bf16", "fp32")])
def test_a_state_is_cast_where_it_has_the_other_precision(
    checkpoint: Path, tmp_path: Path, saved: Dtype, loaded: Dtype
) -> None:
    weights = built(checkpoint, saved)
    trained(weights, checkpoint, tmp_path)
    weights.save_state(tmp_path / "state")
    expected = tensors(weights)
    for sharded in (False, True):
        other = built(checkpoint, loaded, sharded=sharded)
        other.load_state(tmp_path / "state")
        for name, tensor in tensors(other).items():
            assert torch.equal(tensor, expected[name].to(tensor.dtype)), name
        assert other.masters["decoder.norm.scale"].dtype == (torch.bfloat16 if loaded == "bf16" else torch.float32)
