"""The packed forward equals transformers on each sequence alone, for every architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from stages.models.shape import read_shape
from stages.training.checkpoint import StoredWeights, write_checkpoint
from stages.training.model import Policy
from stages.training.packed import FlatRows, PackedBatch
from tests.unit.training.trees import VOCAB, save_model, tree_batch

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {"tie_word_embeddings": False, "rope_theta": 1e6}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "llama3": ("Llama", {"tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "num_attention_heads": 6, "hidden_size": 48,
                          "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    architecture, changes = ARCHITECTURES[request.param]
    save_model(folder, architecture, **changes)
    return folder


def load_policy(folder: Path, **changes: Any) -> Policy:
    policy = Policy(read_shape(folder), **{"activation_checkpointing": False, "chunk_tokens": 2048, **changes})
    stored = StoredWeights(folder)
    parameters = dict(policy.named_parameters())
    stored.check(policy.shape)
    with torch.no_grad():
        for name, tensor in stored.read(parameters, lambda name: parameters[name].shape):
            parameters[name].copy_(tensor)
    return policy


def run(policy: Policy, flat: FlatRows, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = policy.inputs(flat, torch.float32, torch.device("cpu"))
    return policy(inputs, temperature)


def alone(reference: Any, flat: FlatRows, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of every completion token from its own, unpacked sequence."""
    logprobs, entropies = torch.empty(flat.sequences.shape), torch.empty(flat.sequences.shape)
    for segment in flat.sequences.unique().tolist():
        inside = flat.segment_ids == segment
        parent = flat.parent_ids[inside][0]
        sequence = torch.cat([flat.tokens[flat.segment_ids == parent], flat.tokens[inside]])
        logp = torch.log_softmax(reference(sequence[None]).logits[0].float() / temperature, -1)
        mine = flat.sequences == segment
        positions = flat.positions[flat.predictors[1][mine]]
        logprobs[mine] = logp[positions - 1, sequence[positions]]
        entropies[mine] = -(logp.exp() * logp).sum(-1)[positions - 1]
    return logprobs, entropies


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), groups=st.lists(st.integers(1, 3), min_size=1, max_size=4), hot=st.booleans())
def test_packed_equals_each_sequence_alone(
    checkpoint: Path, tmp_path: Path, seed: int, groups: list[int], hot: bool
) -> None:
    policy = load_policy(checkpoint)
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    save_file(tree_batch(seed, groups), tmp_path / "batch.safetensors")
    flat = PackedBatch(tmp_path / "batch.safetensors", VOCAB).flat(list(range(len(groups))))
    temperature = 0.7 if hot else 1.0
    with torch.no_grad():
        found, expected = run(policy, flat, temperature), alone(reference, flat, temperature)
    torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(found[1], expected[1], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("changes", [{}, {"chunk_tokens": 5}, {"activation_checkpointing": True}])
def test_gradients_equal_transformers(checkpoint: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Through the whole model: blocks, merge of the parts, fused head, entropies."""
    policy = load_policy(checkpoint, **changes)
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    save_file(tree_batch(3, [2, 1], prompt=(5, 30), completion=(1, 20)), tmp_path / "batch.safetensors")
    flat = PackedBatch(tmp_path / "batch.safetensors", VOCAB).flat([0, 1])
    for logprobs, entropies in (run(policy, flat, 0.9), alone(reference, flat, 0.9)):
        (logprobs @ flat.advantages + 0.3 * entropies @ flat.weights).backward()
    from stages.training.checkpoint import published_name

    theirs = dict(reference.named_parameters())
    for name, parameter in policy.named_parameters():
        expected = theirs[published_name(name)].grad
        torch.testing.assert_close(
            parameter.grad, expected, atol=3e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_written_checkpoint_opens_in_transformers_with_the_same_logits(checkpoint: Path, tmp_path: Path) -> None:
    policy = load_policy(checkpoint)
    write_checkpoint(checkpoint, tmp_path / "copy", dict(policy.named_parameters()))
    tokens = torch.arange(30)[None] % VOCAB
    with torch.no_grad():
        first, second = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
            for folder in (checkpoint, tmp_path / "copy")
        )
    assert torch.equal(first, second)
