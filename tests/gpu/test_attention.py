"""The CUDA path (flex_attention block mask) against the CPU path."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from stages.training.packed import PackedBatch
from tests.unit.training.test_model import load_policy
from tests.unit.training.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("architecture", ["Qwen2", "Llama"])
def test_log_probabilities_and_gradients_equal_the_cpu(architecture: str, tmp_path: Path) -> None:
    save_model(tmp_path / "model", architecture, hidden_size=128, tie_word_embeddings=True)
    save_file(tree_batch(3, [2, 1], prompt=(90, 140), completion=(20, 90)), tmp_path / "batch.safetensors")
    flat = PackedBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    found: list[list[torch.Tensor]] = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        policy = load_policy(tmp_path / "model").to(device)
        logprobs, entropies = policy(policy.inputs(flat, torch.float32, device), 1.0)
        (logprobs @ flat.advantages.to(device) + entropies.sum()).backward()
        gradients = [p.grad.cpu() for p in policy.parameters() if p.grad is not None]
        found.append([logprobs.detach().cpu(), entropies.detach().cpu(), *gradients])
    for cpu, cuda in zip(*found, strict=True):
        assert (cpu - cuda).norm() <= 2e-2 * cpu.norm() + 1e-4
