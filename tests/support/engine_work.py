"""Least work of an engine, from a model's shape and the lengths of prompts and completions: FLOPs and bytes.

A layer has `width * (2 * heads + 2 * kv_heads + 3 * hidden)` weights (`heads` and `kv_heads` in channels), the output
head `width * vocabulary`. A weight costs 2 FLOPs a token; attention costs 4 FLOPs a channel of all heads for each token
that is looked at. Norms, rotations and the sampler are left out.
"""

from collections.abc import Iterable, Sequence, Set
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


def prefix_blocks(prompts: Iterable[Sequence[int]], block: int) -> set[tuple[int, ...]]:
    """Returns every beginning of a prompt that is a whole number of blocks, as in a prefix cache."""
    return {tuple(prompt[:end]) for prompt in prompts for end in range(block, len(prompt) + 1, block)}


def prefill_work(
    shape: DecoderShape, groups: Sequence[Sampled], cached: Set[tuple[int, ...]], block: int, weight_bytes: int
) -> Work:
    """Returns the work until each completion has its first token.

    FLOPs: the layers on each token of each prompt once, less whole blocks that stand in the prefix cache (those of an
    earlier prompt of this call too); causal attention; the head once a prompt. Bytes: weights once, the KV cache once.

    Args:
        cached: Beginnings in the prefix cache, as `prefix_blocks` returns them.
        block: Tokens of a block of the prefix cache.
        weight_bytes: Bytes of a weight and of a number in the KV cache.
    """
    known, tokens, pairs = set(cached), 0, 0
    for group in groups:
        blocks = prefix_blocks([group.prompt], block)
        length, reused = len(group.prompt), max((len(each) for each in blocks & known), default=0)
        known |= blocks
        tokens += length - reused
        pairs += (length * (length + 1) - reused * (reused + 1)) // 2
    flops = 2.0 * (tokens * layer_weights(shape) + len(groups) * head_weights(shape))
    flops += 4.0 * shape.layers * shape.heads * shape.head_dim * pairs
    read = layer_weights(shape) + head_weights(shape) + tokens * _kv_numbers(shape)
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
