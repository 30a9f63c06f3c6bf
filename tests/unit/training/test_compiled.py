"""Layers compiled by torch.compile: as on GPUs in structure, and equal to eager ones on the CPU."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor

from stages.models.shape import read_shape
from stages.training.job import TrainHardware
from stages.training.model.block_mask import block_mask
from stages.training.model.placement import place_policy
from stages.training.model.policy import Policy
from stages.training.trainer_batch import TrainerBatch
from tests.support.policies import ARCHITECTURES, load_policy
from tests.support.training import assert_same, train
from tests.support.trees import VOCAB, save_model, tree_batch

CPU = torch.device("cpu")


def checkpoint_in(folder: Path, **changes: Any) -> Path:
    name, own = ARCHITECTURES["qwen3"]
    save_model(folder, name, **(own | changes))
    return folder


def test_only_gpus_compile_unless_a_profile_says_otherwise(tmp_path: Path) -> None:
    assert TrainHardware().compiles("cuda") and not TrainHardware().compiles("cpu")
    assert TrainHardware(compile=True).compiles("cpu") and not TrainHardware(compile=False).compiles("cuda")
    shape = read_shape(checkpoint_in(tmp_path / "model"))
    for compiled in (False, True):
        hardware = TrainHardware(device="cpu", compute_dtype="fp32", **({"compile": True} if compiled else {}))
        policy = place_policy(shape, hardware, CPU, False, torch.float32)
        assert [("forward" in vars(layer)) for layer in policy.decoder.layers] == [compiled] * shape.layers


@pytest.mark.long
@pytest.mark.parametrize("again", [False, True], ids=["saved", "recomputed"])
def test_one_graph_serves_all_layers_and_masks(again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer as on a GPU, with flex_attention, traced but computed eagerly; torch refuses its backward on CPUs."""
    from torch._dynamo.utils import counters
    from torch.nn.attention import flex_attention

    def results(policy: Policy, seed: int) -> dict[str, Tensor]:
        save_file(tree_batch(seed, [2, 1], prompt=(10, 20), completion=(5, 9)), tmp_path / "batch.safetensors")
        flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
        policy.zero_grad()
        logprobs, entropies = policy(policy.inputs(flat, torch.float32, CPU), 1.0)
        (logprobs @ flat.advantages + entropies.sum()).backward()
        gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
        return {"logprobs": logprobs.detach(), **gradients}

    heads = ARCHITECTURES["qwen3"][1].get("num_attention_heads", 4)
    folder = checkpoint_in(tmp_path / "model", hidden_size=32 * heads, head_dim=32, num_hidden_layers=3)
    policy = load_policy(folder, activation_checkpointing=again)
    eager = [results(policy, seed) for seed in range(3)]

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr("stages.training.model.policy.attention_tree", block_mask)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    for layer in policy.decoder.layers:
        layer.compile_forward(torch.device("cuda"))
    torch.compiler.reset()
    counters.clear()
    for seed, expected in enumerate(eager):
        for name, tensor in results(policy, seed).items():
            assert (tensor - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-6, name
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


@pytest.mark.long
@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_a_compiled_trainer_learns_the_same(sharded: bool, tmp_path: Path) -> None:
    """With the code that inductor generates, and FSDP2's hooks around it."""
    checkpoint = checkpoint_in(tmp_path / "model", num_hidden_layers=2)
    columns = tree_batch(3, [2, 1, 2, 1], prompt=(5, 30), completion=(1, 20))
    eager, compiled = (
        train(checkpoint, tmp_path, columns, sharded=sharded, compile=switch, micro_batch_tokens=40, epochs=1)
        for switch in (False, True)
    )
    assert_same(eager, compiled)
