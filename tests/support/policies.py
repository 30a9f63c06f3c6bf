"""Architectures of which tests make tiny models, and the trainer's policy of a checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from stages.models.shape import read_shape
from stages.training.checkpointing.checkpoint import StoredWeights, published_name, write_checkpoint
from stages.training.model.policy import Policy
from stages.training.trainer_batch import FlatRows, TrainerBatch
from tests.support.trees import VOCAB, tree_batch

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
SLIDING = ["sliding_attention", "full_attention"]
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {"tie_word_embeddings": False, "rope_theta": 1e6}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "llama3": ("Llama", {"tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    "qwen3-biases": ("Qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "num_attention_heads": 6, "hidden_size": 48,
                          "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral-sliding": ("Mistral", {"sliding_window": 5}),
    "phi3": ("Phi3", {"sliding_window": 5, "rope_parameters": None}),
    "phi4-mini": ("Phi3", {"tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 512, "short_factor": [1.0 + n / 10 for n in range(12)],
        "long_factor": [1.0 + n for n in range(12)]}, "original_max_position_embeddings": 512,
        "max_position_embeddings": 1024, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [0, 1]}),
    "olmo2": ("Olmo2", {"attention_bias": True}),
    "olmo3": ("Olmo3", {"sliding_window": 5, "layer_types": SLIDING}),
    "olmo3-yarn": ("Olmo3", {"sliding_window": 200, "layer_types": SLIDING, "rope_parameters": {
        "full_attention": {**YARN, "attention_factor": 1.2},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 5, "layer_types": SLIDING,
                              "query_pre_attn_scalar": 24, "hidden_size": 32}),
    "gemma3-linear": ("Gemma3Text", {
        "head_dim": 16, "sliding_window": 9, "layer_types": SLIDING, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}}),
    "qwen3-moe": ("Qwen3Moe", {"head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                               "norm_topk_prob": True, "initializer_range": 0.2}),
    "granite": ("Granite", {"tie_word_embeddings": False, "embedding_multiplier": 3.0, "residual_multiplier": 0.8,
                            "attention_multiplier": 0.05, "logits_scaling": 0.7}),
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


def run(policy: Policy, flat: FlatRows, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = policy.inputs(flat, torch.float32, torch.device("cpu"))
    return policy(inputs, temperature)[:2]


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


def gradient_of(parameters: dict[str, Any], name: str) -> torch.Tensor:
    """Returns a gradient by published name; transformers 5 has one tensor of all experts."""
    if ".experts." not in name:
        return parameters[name].grad
    prefix, _, rest = name.partition(".experts.")
    expert, matrix, _ = rest.split(".")
    if matrix == "down_proj":
        return parameters[f"{prefix}.experts.down_proj"].grad[int(expert)]
    halves = parameters[f"{prefix}.experts.gate_up_proj"].grad[int(expert)].chunk(2)
    return halves[matrix == "up_proj"]


@dataclass(frozen=True)
class Parity:
    """Distances of the policy's numbers from those of transformers, in float32.

    Attributes:
        logprobs: Largest distance of a log-probability.
        gradients: Distance of each parameter's gradient over its norm, by policy name.
    """

    logprobs: float
    gradients: dict[str, float]


def parity_with_transformers(folder: Path, scratch: Path, **changes: Any) -> Parity:
    """Compares a model on packed groups with transformers on each sequence alone; `changes` are those of `Policy`."""
    policy = load_policy(folder, **changes)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    save_file(tree_batch(3, [2, 1], prompt=(5, 30), completion=(1, 20)), scratch / "batch.safetensors")
    flat = TrainerBatch(scratch / "batch.safetensors", VOCAB).flat([0, 1])
    (mine, entropies), (expected, expected_entropies) = run(policy, flat, 0.9), alone(reference, flat, 0.9)
    (mine @ flat.advantages + 0.3 * entropies @ flat.sampler_logprobs).backward()
    (expected @ flat.advantages + 0.3 * expected_entropies @ flat.sampler_logprobs).backward()
    theirs = dict(reference.named_parameters())
    gradients: dict[str, float] = {}
    for name, parameter in policy.named_parameters():
        grad = gradient_of(theirs, published_name(name, policy.shape))
        assert parameter.grad is not None and grad.norm() > 0
        gradients[name] = float((parameter.grad - grad).norm() / grad.norm())
    return Parity(float((mine - expected).detach().abs().max()), gradients)
