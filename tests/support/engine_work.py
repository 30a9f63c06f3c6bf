"""Least work of an engine, from a model's shape and the lengths of prompts and completions: FLOPs and bytes.

A layer has `width * (2 * heads + 2 * kv_heads + 3 * hidden)` weights (`heads` and `kv_heads` in channels), the output
head `width * vocabulary`. A weight costs 2 FLOPs a token; attention costs 4 FLOPs a channel of all heads for each token
that is looked at. Norms, rotations and the sampler are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stages.models.shape import DecoderShape


@dataclass(frozen=True)
class Sampled:
    """One prompt and the lengths of its completions, in tokens."""

    prompt: Sequence[int]
    completions: Sequence[int]
    """Length of each completion, the end token included."""


@dataclass(frozen=True)
class Work:
    """FLOPs, and the least number of bytes that must be read from memory."""

    flops: float
    bytes: float


def layer_weights(shape: DecoderShape) -> int:
    """Returns the number of weights of the matrices in all layers."""
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.layers * shape.embed_dim * (2 * heads + 2 * kv_heads + 3 * shape.hidden_dim)


def head_weights(shape: DecoderShape) -> int:
    """Returns the number of weights of the output head."""
    return shape.embed_dim * shape.vocab_size


def prefill_work(shape: DecoderShape, groups: Sequence[Sampled], weight_bytes: int) -> Work:
    """Returns the work until each completion has its first token.

    FLOPs: the layers on each token of each prompt once, causal attention, the head once a prompt. Bytes: weights once,
    the KV cache once.

    Args:
        weight_bytes: Bytes of a weight and of a number in the KV cache.
    """
    lengths = [len(group.prompt) for group in groups]
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    flops = 2.0 * (sum(lengths) * layer_weights(shape) + len(groups) * head_weights(shape))
    flops += 4.0 * shape.layers * shape.heads * shape.head_dim * pairs
    read = layer_weights(shape) + head_weights(shape) + sum(lengths) * _kv_numbers(shape)
    return Work(flops, float(weight_bytes * read))


def decode_work(shape: DecoderShape, groups: Sequence[Sampled], batch: int, weight_bytes: int) -> Work:
    """Returns the work of every token after a completion's first.

    FLOPs: layers and head on each token, attention on all tokens before it. Bytes: the weights once a step, and for
    each token its sequence's KV cache (a kernel that reads a prompt once for all of its completions needs less). There
    are as many steps as the longest completion has, or as full batches make, whichever is more.

    Args:
        batch: Largest number of sequences in one step.
        weight_bytes: Bytes of a weight and of a number in the KV cache.
    """
    tokens = contexts = longest = 0
    for group in groups:
        for length in group.completions:
            after_first = max(0, length - 1)
            tokens += after_first
            contexts += after_first * len(group.prompt) + after_first * (after_first + 1) // 2
            longest = max(longest, after_first)
    weights = layer_weights(shape) + head_weights(shape)
    flops = 2.0 * tokens * weights + 4.0 * shape.layers * shape.heads * shape.head_dim * contexts
    steps = max(longest, -(-tokens // batch))
    return Work(flops, float(weight_bytes * (steps * weights + contexts * _kv_numbers(shape))))


def _kv_numbers(shape: DecoderShape) -> int:
    """Returns the count of numbers that the KV cache holds for a token."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim
