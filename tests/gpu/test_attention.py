"""The CUDA path (flex_attention block mask) against the CPU path, for every architecture, in both precisions."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from stages.training.trainer_batch import FlatRows, TrainerBatch
from tests.support.policies import ARCHITECTURES, load_policy
from tests.support.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HEAD_DIM = 32
"""flex_attention takes no heads narrower than 16."""
FLOAT32 = 2e-2
"""Relative error in float32; a tensor's norm may also differ by 1e-4 of its own."""
BFLOAT16 = 2.0
"""In bfloat16 CUDA may be as many times as far from float32 as the CPU is in bfloat16, and a hundredth of a norm."""


def results(
    folder: Path, flat: FlatRows, device: torch.device, dtype: torch.dtype, *, compiled: bool = False
) -> dict[str, torch.Tensor]:
    """Log-probabilities, entropies and every gradient, in float32 on the CPU."""
    policy = load_policy(folder).to(device, dtype)
    if compiled:
        policy.compile_forward()
    logprobs, entropies, _ = policy(policy.inputs(flat, dtype, device), 1.0)
    (logprobs @ flat.advantages.to(device) + entropies.sum()).backward()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    tensors = {"logprobs": logprobs.detach(), "entropies": entropies.detach(), **gradients}
    return {name: tensor.cpu().float() for name, tensor in tensors.items()}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_log_probabilities_and_gradients_equal_the_cpu(
    architecture: str, dtype: torch.dtype, compiled: bool, tmp_path: Path
) -> None:
    name, changes = ARCHITECTURES[architecture]
    width = HEAD_DIM * changes.get("num_attention_heads", 4)
    save_model(tmp_path / "model", name, **(changes | {"hidden_size": width, "head_dim": HEAD_DIM}))
    save_file(tree_batch(3, [2, 1], prompt=(90, 140), completion=(20, 90)), tmp_path / "batch.safetensors")
    flat = TrainerBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    exact = results(tmp_path / "model", flat, CPU, torch.float32)
    computed = results(tmp_path / "model", flat, CUDA, dtype, compiled=compiled)
    rounded = results(tmp_path / "model", flat, CPU, dtype)
    assert computed.keys() == exact.keys()
    for part, expected in exact.items():
        distance, norm = (computed[part] - expected).norm(), expected.norm()
        if dtype == torch.float32:
            assert distance <= FLOAT32 * norm + 1e-4, part
        else:
            assert distance <= BFLOAT16 * (rounded[part] - expected).norm() + 1e-2 * norm, part
