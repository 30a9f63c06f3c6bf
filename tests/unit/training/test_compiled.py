"""GPUs compile layers and head unless the profile says no; tests/gpu has what the compiled kernels compute."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

from stages.models.shape import read_shape
from stages.training.job import LossConfig
from stages.training.model import head
from stages.training.model import policy as model
from stages.training.model.parts import Mixture
from stages.training.model.placement import place_policy
from stages.training.model.tree_attention import Window
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import ARCHITECTURES
from tests.support.training import assert_same, train
from tests.support.trees import save_model, tree_batch

pytestmark = pytest.mark.long


def _dense_tree(segments: Tensor, parents: Tensor, device: torch.device, window: Window | None = None) -> Tensor:
    related = ((segments[:, None] == segments) | (parents[:, None] == segments)).tril()
    if window is None:
        return related
    return related & (window.positions[:, None] - window.positions < window.tokens)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Tensor, scale: float, enable_gqa: bool) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, block_mask, scale=scale, enable_gqa=enable_gqa)


def _gathered(mixture: Mixture, inputs: Tensor, counts: Tensor) -> Tensor:
    expert_of = torch.repeat_interleave(torch.arange(len(counts)), counts, output_size=inputs.shape[0])
    gate, up, down = (
        torch.stack([expert.get_parameter(f"{name}.weight") for expert in mixture.experts])[expert_of]
        for name in ("w1", "w3", "w2")
    )
    gated = functional.silu(torch.einsum("nfe,ne->nf", gate, inputs)) * torch.einsum("nfe,ne->nf", up, inputs)
    return torch.einsum("nef,nf->ne", down, gated)


@pytest.mark.parametrize(
    ("asked", "device", "compiles"),
    [
        ("auto", "cuda", True),
        ("auto", "cpu", False),
        (True, "cuda", True),
        (True, "cpu", False),
        (False, "cuda", False),
    ],
)
def test_gpus_compile_unless_told_otherwise(asked: Any, device: str, compiles: bool) -> None:
    assert TrainHardware(compile=asked).compiles(device) == compiles
    assert TrainHardware() == TrainHardware(compile="auto")


def test_layers_on_a_cpu_are_not_compiled(tmp_path: Path) -> None:
    save_model(tmp_path, ARCHITECTURES["qwen3"][0])
    hardware = TrainHardware(compute_dtype="fp32", compile=True)
    policy = place_policy(read_shape(tmp_path), hardware, torch.device("cpu"), False, torch.float32)
    assert not any("forward" in vars(layer) for layer in policy.decoder.layers)


@pytest.fixture
def compiled_as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiles on a CPU, with a backend that makes no machine code.

    A dense mask and torch's own attention stand for flex_attention, which has no backward on CPUs, and gathered weights
    for the grouped products of experts, which are compiled in bf16 only.
    """
    compiler = torch.compile

    def compiled(function: Any, **options: Any) -> Any:
        return compiler(function, **options, backend="aot_eager", fullgraph=True)

    monkeypatch.setattr(TrainHardware, "compiles", lambda self, device: self.compile is True)
    monkeypatch.setattr(model, "attention_tree", _dense_tree)
    monkeypatch.setattr(flex, "flex_attention", _attend)
    monkeypatch.setattr(Mixture, "_one_by_one", _gathered)
    monkeypatch.setattr(torch, "compile", compiled)
    torch._dynamo.reset()
    head._compiled.cache_clear()
    counters.clear()
    yield
    torch._dynamo.reset()
    head._compiled.cache_clear()


@pytest.mark.usefixtures("compiled_as_on_gpus", "world_of_one")
@pytest.mark.parametrize(
    ("model", "recomputed"),
    [
        ("qwen2", False),
        ("qwen2", True),
        pytest.param("gemma3", False, marks=pytest.mark.release),
        pytest.param("qwen3-moe", True, marks=pytest.mark.release),
    ],
)
def test_a_compiled_job_trains_as_an_eager_one(
    model: str, recomputed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph serves all layers of a kind and all sizes of micro-batches; the head has one forward and one backward.

    The variant that recomputes layers also computes the head in chunks, and rewards entropy.
    """
    architecture, changes = ARCHITECTURES[model]
    save_model(tmp_path / "model", architecture, **{**changes, "hidden_size": 64})
    columns = tree_batch(5, [2, 1, 3, 1], steps=2)
    settings: dict[str, Any] = {"epochs": 1, "micro_batch_tokens": 30, "activation_checkpointing": recomputed}
    if recomputed:
        router = 0.1 * (model == "qwen3-moe")
        loss = LossConfig(entropy_coef=0.1, temperature=0.7, router_aux_loss_coef=router)
        settings |= {"loss": loss, "logprob_chunk_tokens": 3}
    compiled = train(tmp_path / "model", tmp_path, columns, compile=True, **settings)
    graphs = counters["stats"]["unique_graphs"]
    monkeypatch.undo()
    assert_same(compiled, train(tmp_path / "model", tmp_path, columns, **settings))
    assert 3 <= graphs <= 8, f"{graphs} graphs for 2 layers, and a head in chunks, of 4 sizes of micro-batches"
