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
from stages.training.model.placement import place_policy
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import ARCHITECTURES
from tests.support.training import assert_same, train
from tests.support.trees import save_model, tree_batch


def _dense_tree(segments: Tensor, parents: Tensor, device: torch.device) -> Tensor:
    related = (segments[:, None] == segments) | (parents[:, None] == segments)
    return related.tril()


def _attend(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Tensor, enable_gqa: bool) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=block_mask, enable_gqa=enable_gqa)


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

    A dense mask and torch's own attention stand for flex_attention, which has no backward on CPUs.
    """
    compiler = torch.compile

    def compiled(function: Any, **options: Any) -> Any:
        return compiler(function, **options, backend="aot_eager", fullgraph=True)

    monkeypatch.setattr(TrainHardware, "compiles", lambda self, device: self.compile is True)
    monkeypatch.setattr(model, "attention_tree", _dense_tree)
    monkeypatch.setattr(flex, "flex_attention", _attend)
    monkeypatch.setattr(torch, "compile", compiled)
    torch._dynamo.reset()
    head._compiled.cache_clear()
    counters.clear()
    yield
    torch._dynamo.reset()
    head._compiled.cache_clear()


@pytest.mark.usefixtures("compiled_as_on_gpus", "world_of_one")
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_compiled_job_trains_as_an_eager_one(
    recomputed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph serves all layers and all sizes of micro-batches; the head has one forward and one backward.

    The variant that recomputes layers also computes the head in chunks, and rewards entropy.
    """
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=True, hidden_size=64)
    columns = tree_batch(5, [2, 1, 3, 1], steps=2)
    settings: dict[str, Any] = {"epochs": 1, "micro_batch_tokens": 30, "activation_checkpointing": recomputed}
    if recomputed:
        settings |= {"loss": LossConfig(entropy_coef=0.1, temperature=0.7), "logprob_chunk_tokens": 3}
    compiled = train(tmp_path / "model", tmp_path, columns, compile=True, **settings)
    graphs = counters["stats"]["unique_graphs"]
    monkeypatch.undo()
    assert_same(compiled, train(tmp_path / "model", tmp_path, columns, **settings))
    assert 3 <= graphs <= 8, f"{graphs} graphs for 2 layers, and a head in chunks, of 4 sizes of micro-batches"
