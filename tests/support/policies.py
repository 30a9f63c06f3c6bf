"""Architectures of which tests make tiny models, and the trainer's policy of a checkpoint."""

from pathlib import Path
from typing import Any

import torch

from stages.models.shape import read_shape
from stages.training.checkpointing.checkpoint import StoredWeights, write_checkpoint
from stages.training.model.policy import Policy

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


def load_policy(folder: Path, **changes: Any) -> Policy:
    """Returns the policy with a folder's weights; `changes` are arguments of `Policy`."""
    policy = Policy(read_shape(folder), **{"activation_checkpointing": False, "chunk_tokens": 2048, **changes})
    stored = StoredWeights(folder)
    parameters = dict(policy.named_parameters())
    stored.check(policy.shape)
    with torch.no_grad():
        for name, tensor in stored.read(parameters, lambda name: parameters[name].shape):
            parameters[name].copy_(tensor)
    return policy


def save_policy(policy: Policy, source: Path, out: Path, **options: Any) -> None:
    """Writes a policy as a checkpoint with a folder's other files; `options` are those of `write_checkpoint`."""
    parameters = {name: p.detach().to(torch.bfloat16) for name, p in policy.named_parameters()}
    write_checkpoint(source, out, {name: p.shape for name, p in parameters.items()}, parameters.get, **options)
