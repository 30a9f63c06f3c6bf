"""However many processes and machines, micro-batches and packings there are, the optimizer steps are the same.

In float32 they differ by the order of sums only: losses by 1e-5 (of their size where that is above 1), gradient norms
by 1e-4 of their size, and weights after four AdamW steps of 0.01 by 1e-4. (Where a gradient is nearly 0 AdamW divides
rounding by rounding; eps 1e-3 keeps that out of the comparison.)
"""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save_file
from safetensors.torch import load_file

from artifacts.errors import BadInputError
from stages.training.job import EpochOrder, LossConfig, OptimizerConfig
from stages.training.model.placement import shards
from stages.training.results import StepMetrics
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.tiers import long_except
from tests.support.trainer_processes import command_lines
from tests.support.training import repacked
from tests.support.trees import save_model, tree_batch

LAYOUTS: list[dict[str, Any]] = [
    {"processes": 1},
    {
        "processes": 2, "micro_batch_tokens": 30, "activation_checkpointing": True, "logprob_chunk_tokens": 5,
        "cpu_offload": True,
    },
    {"processes": 4, "micro_batch_tokens": 12, "reshard_after_forward": False},
    {"processes": 2, "tensor_parallel": 2},
]  # fmt: skip
LOSS = LossConfig(
    kl_coef=0.1, entropy_coef=0.02, old_logprobs="trainer", aggregation="sequence_mean",
    importance_correction="sequence_truncate",
)  # fmt: skip

Trained = tuple[list[StepMetrics], dict[str, torch.Tensor]]


def train(folder: Path, group: WorkerGroup, batch: str, order: EpochOrder = "same") -> Trained:
    """Metrics of two epochs, and the weights after them in float32: an average that gives the old ones no weight."""
    out = folder / f"{batch}-{group.hardware.model_dump_json()[:80]}-{id(group)}"
    job = train_job(
        checkpoint_dir=folder / "model", batch_file=folder / f"{batch}.safetensors", learning_rates=[0.01] * 4,
        epochs=2, loss=LOSS, optimizer=OptimizerConfig(eps=1e-3), hardware=group.hardware,
        out_checkpoint_dir=out / "new", reference_dir=folder / "model", out_reference_dir=out / "exact",
        reference_decay=0.0, epoch_order=order, epoch_seed=1, events_file=out / "events.jsonl",
    )  # fmt: skip
    result = group.run(job)
    return result.steps, load_file(out / "exact" / "model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and three batches: one, the same in other rows, and one whose rows can be drawn anew for each epoch."""
    folder = tmp_path_factory.mktemp("invariance")
    save_model(folder / "model", "Qwen2", tie_word_embeddings=True)
    columns = tree_batch(1, [2, 1, 3, 1, 2], steps=2)
    for name, packed in (("packed", columns), ("repacked", repacked(columns))):
        save_file(packed, folder / f"{name}.safetensors")
    save_file(tree_batch(2, [1] * 6, steps=2, branches=(2, 3)), folder / "even.safetensors")
    return folder


@pytest.fixture(scope="module")
def trained_by(folder: Path) -> Callable[[int], dict[str, Trained]]:
    """Trains on each batch with a layout, given by its number; a layout is started once."""

    @cache
    def train_all(layout: int) -> dict[str, Trained]:
        with WorkerGroup(hardware_of(layout), folder / f"group-{layout}") as group:
            trained = {name: train(folder, group, name) for name in ("packed", "repacked")}
            return trained | {"even": train(folder, group, "even", "shuffled")}

    return train_all


def hardware_of(layout: int, **changes: Any) -> TrainHardware:
    return TrainHardware(**{"compute_dtype": "fp32", "threads": 1, **LAYOUTS[layout], **changes})


@pytest.mark.parametrize("layout", long_except(range(1, len(LAYOUTS)), 1))
def test_processes_micro_batches_packing_and_memory_switches_do_not_matter(
    trained_by: Callable[[int], dict[str, Trained]], layout: int
) -> None:
    expected, trained = trained_by(0), trained_by(layout)
    for batch in ("packed", "repacked"):
        _assert_same(expected[batch], expected["packed"])
        _assert_same(trained[batch], expected["packed"])
    _assert_same(trained["even"], expected["even"])
    first, second = ([step.tokens for step in trained["even"][0][epoch : epoch + 2]] for epoch in (0, 2))
    assert sorted(first) != sorted(second), "rows changed places, also between processes"


@pytest.mark.release
def test_two_machines_equal_one_with_two_processes(
    folder: Path, trained_by: Callable[[int], dict[str, Trained]], tmp_path: Path
) -> None:
    """Two agents of torchrun, whose workers meet through the shared folder; ranks are the same, so the bits are."""
    expected, shared = trained_by(1)["packed"], tmp_path / "shared"
    two = hardware_of(1, processes=1, nodes=2, rendezvous="127.0.0.1", shared_dir=shared)
    command = [sys.executable, "-u", "-m", "stages.training.worker_group.node", str(shared), "--node-rank", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            with WorkerGroup(two, shared) as group:
                trained = train(folder, group, "packed")
            assert "joining" in node.stdout.readline()
            assert "left it" in node.stdout.readline()
            assert not [line for _, line in command_lines() if f"--queue={shared}" in line]
        finally:
            node.kill()
    assert [step.loss for step in trained[0]] == [step.loss for step in expected[0]]
    for name, tensor in trained[1].items():
        assert torch.equal(tensor, expected[1][name])


def test_machines_that_cannot_meet_are_refused() -> None:
    with pytest.raises(ValidationError, match="several nodes need rendezvous"):
        TrainHardware(nodes=2)
    for nowhere in ("some where", "trainer-0:port", ""):
        with pytest.raises(ValidationError, match="rendezvous"):
            TrainHardware(nodes=2, rendezvous=nowhere, shared_dir=Path("shared"))


def test_offloading_to_the_memory_that_is_used_anyway_is_refused() -> None:
    hardware = TrainHardware(threads=1, cpu_offload=True, device="cpu")
    with pytest.raises(BadInputError, match=r"trainer\.cpu_offload: true"):
        shards(hardware, torch.device("cpu"))


def _assert_same(trained: Trained, expected: Trained) -> None:
    for a, b in zip(trained[0], expected[0], strict=True):
        assert (a.tokens, a.loss_tokens) == (b.tokens, b.loss_tokens)
        assert (a.loss, a.policy_loss, a.kl) == pytest.approx((b.loss, b.policy_loss, b.kl), abs=1e-5, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    assert trained[1].keys() == expected[1].keys()
    for name, tensor in trained[1].items():
        torch.testing.assert_close(tensor, expected[1][name], atol=1e-4, rtol=1e-4)
