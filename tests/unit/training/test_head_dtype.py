"""Logits in float32 while the other layers compute in bf16."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from stages.training.job import LossConfig
from stages.training.trainer_batch import TrainerBatch
from tests.support.policies import load_policy
from tests.support.training import train
from tests.support.trees import VOCAB, save_model, tree_batch

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_only_the_head_computes_in_float32(tied: bool, tmp_path: Path) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=tied)
    save_file(tree_batch(3, [2, 1]), tmp_path / "batch.safetensors")
    flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    policy = load_policy(tmp_path / "model").bfloat16()
    inputs = policy.inputs(flat, torch.bfloat16, CPU)
    weight = policy.decoder.tok_embeddings.weight if policy.head is None else policy.head.weight
    hidden = policy.decoder(inputs.tokens, mask=inputs.attention).squeeze(0)[inputs.predictors]
    assert weight.dtype == torch.bfloat16 and torch.equal(hidden, hidden.bfloat16().to(hidden.dtype))
    logits = hidden.float() @ weight.float().t() / 0.7
    expected = torch.log_softmax(logits, -1).gather(1, inputs.targets[:, None]).squeeze(1)
    exact, entropies, _ = policy(inputs, 0.7, torch.float32)
    rounded, *_ = policy(inputs, 0.7)
    torch.testing.assert_close(exact, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        entropies, torch.distributions.Categorical(logits=logits).entropy(), atol=1e-5, rtol=1e-5
    )
    assert (rounded - expected).abs().max() > 1e-3, "bf16 logits are rounded, else this test shows nothing"
    (given,) = torch.autograd.grad(exact.sum(), weight, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), weight)
    assert given.dtype == torch.bfloat16
    torch.testing.assert_close(given.float(), wanted.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.usefixtures("world_of_one")
def test_the_setting_reaches_the_loss(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=True)
    columns = tree_batch(5, [1, 2])

    def gap(compute: str, head: str) -> float:
        loss = LossConfig.model_validate({"head_dtype": head})
        metrics, _ = train(tmp_path / "model", tmp_path, columns, epochs=1, loss=loss, compute_dtype=compute)
        assert metrics[0].sampler_gap_mean is not None
        return metrics[0].sampler_gap_mean

    assert gap("fp32", "compute") == gap("fp32", "fp32")
    assert gap("bf16", "compute") != gap("bf16", "fp32")
