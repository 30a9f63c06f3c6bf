"""Layers compiled as on GPUs, traced but computed eagerly on the CPU, against layers that are not compiled."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.models.shape import read_shape
from stages.training.job import TrainHardware
from stages.training.model.block_mask import block_mask
from stages.training.model.placement import place_policy
from tests.support.policies import ARCHITECTURES
from tests.support.training import assert_same, train
from tests.support.trees import save_model, tree_batch

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model with heads that flex_attention takes."""
    name, own = ARCHITECTURES["qwen3"]
    width = 32 * own.get("num_attention_heads", 4)
    save_model(tmp_path / "model", name, **(own | {"hidden_size": width, "head_dim": 32, "num_hidden_layers": 3}))
    return tmp_path / "model"


def test_gpus_compile_and_cpus_do_not(checkpoint: Path) -> None:
    assert TrainHardware().compiles("cuda") and not TrainHardware().compiles("cpu")
    assert not TrainHardware(compile=False).compiles("cuda")
    policy = place_policy(read_shape(checkpoint), TrainHardware(compute_dtype="fp32"), CPU, False, torch.float32)
    assert not any("forward" in vars(layer) for layer in policy.decoder.layers)


@pytest.mark.long
@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(("again", "sharded"), [(False, False), (True, False), (True, True)])
def test_one_graph_serves_all_layers_and_masks(
    again: bool, sharded: bool, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With flex_attention, whose backward pass torch refuses on CPUs; with recomputation, and with FSDP2."""
    from torch._dynamo.utils import counters
    from torch.nn.attention import flex_attention

    columns = tree_batch(3, [2, 1, 2], prompt=(10, 20), completion=(5, 9))
    options: dict[str, Any] = {
        "sharded": sharded,
        "activation_checkpointing": again,
        "micro_batch_tokens": 30,
        "epochs": 1,
    }
    eager = train(checkpoint, tmp_path, columns, **options)

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr("stages.training.model.policy.attention_tree", block_mask)
    monkeypatch.setattr(TrainHardware, "compiles", lambda *_: True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    assert_same(eager, train(checkpoint, tmp_path, columns, **options), tolerance=1e-4)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
