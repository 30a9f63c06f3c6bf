"""The output head fused with log-softmax, computed in chunks for chosen positions only.

CPUs compute in cache-sized blocks. On GPUs, the steps between the products with the head are compiled into one kernel
forward and one backward: they read the logits once or twice, and write nothing of the size of the vocabulary but the
gradient. The same steps uncompiled move four times the bytes, products included (`tests.benchmarks.roofline`).

Shapes: C positions, E width, V vocabulary.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

CACHE_ELEMENTS = 1 << 22
"""Number of logits that are turned into probabilities at a time on the CPU (16 MiB of float32)."""


def _eager_forward(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, keep: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns probabilities [C, V] (None unless `keep`), log-probabilities [C] and entropies [C], by blocks."""
    count, vocabulary = hidden.shape[0], weight.shape[0]
    logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
    entropies = torch.empty_like(logprobs)
    kept = hidden.new_empty(count, vocabulary) if keep else None
    for rows in _blocks(hidden, vocabulary):
        logp = torch.log_softmax((hidden[rows] @ weight.t()).float().div_(temperature), -1)
        p = logp.exp()
        logprobs[rows] = logp.gather(1, targets[rows, None]).squeeze(1)
        entropies[rows] = -torch.linalg.vecdot(p, logp)
        if kept is not None:
            kept[rows] = p
    return kept, logprobs, entropies


def _eager_gradient(
    p: Tensor,
    targets: Tensor,
    temperature: float,
    logprobs: Tensor,
    entropies: Tensor,
    g: Tensor,
    g_entropy: Tensor | None,
) -> Tensor:
    """Returns the gradient of the logits, [C, V], in place of the probabilities, by blocks.

    The gradient of logit j is [j = target] g - p_j (g + g_H (log p_j + H)), with the gradients g of the log-probability
    and g_H of the entropy H. At the target p_j comes from the float32 log-probability.
    """
    g = g / temperature
    g_entropy = None if g_entropy is None else g_entropy / temperature
    for rows in _blocks(p, p.shape[1]):
        g_rows = factor = g[rows, None]
        if g_entropy is not None:
            logp = p[rows].float().clamp(min=1e-30).log_()
            logp.add_(entropies[rows, None]).mul_(g_entropy[rows, None]).add_(g_rows)
            p[rows] = p[rows] * logp.neg_()
            factor = g_rows + g_entropy[rows, None] * (logprobs[rows, None] + entropies[rows, None])
        else:
            p[rows].mul_(-g_rows)
        at_target = g_rows - factor * logprobs[rows, None].exp()
        p[rows].scatter_(1, targets[rows, None], at_target.to(p.dtype))
    return p


def _blocks(rows: Tensor, vocabulary: int) -> list[slice]:
    """Returns slices of positions to compute at a time: cache-sized on the CPU, all on CUDA."""
    count = rows.shape[0]
    size = max(16, CACHE_ELEMENTS // vocabulary) if rows.device.type == "cpu" else max(1, count)
    return [slice(start, min(count, start + size)) for start in range(0, count, size)]


def _statistics(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of the targets and entropies, [C] float32, of logits [C, V]."""
    logp = torch.log_softmax(logits.float() / temperature, -1)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(-1)


def _gradient(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    logprobs: Tensor,
    entropies: Tensor,
    g: Tensor,
    g_entropy: Tensor | None,
) -> Tensor:
    """Returns the gradient of logits, [C, V] in their type; the formula is that of `_eager_gradient`."""
    scaled = logits.float() / temperature
    normalizers = scaled.gather(1, targets[:, None]) - logprobs[:, None]
    logp = scaled - normalizers
    factor = g[:, None] if g_entropy is None else g[:, None] + g_entropy[:, None] * (logp + entropies[:, None])
    at_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    return ((torch.where(at_target, g[:, None], 0.0) - logp.exp() * factor) / temperature).to(logits.dtype)


@cache
def _compiled() -> tuple[Any, Any]:
    """Returns `_statistics` and `_gradient`, each compiled into a kernel for all sizes."""
    return torch.compile(_statistics, dynamic=True), torch.compile(_gradient, dynamic=True)


def _compiled_forward(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, keep: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns logits [C, V] (None unless `keep`), log-probabilities [C] and entropies [C]."""
    logits = hidden @ weight.t()
    return logits if keep else None, *_compiled()[0](logits, targets, temperature)


class _TokenStatistics(torch.autograd.Function):
    """Keeps what backward needs of the logits if all positions fit into one chunk, else recomputes it."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int, compiled: bool
    ) -> tuple[Tensor, Tensor]:
        run = _compiled_forward if compiled else _eager_forward
        logprobs, kept = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device), None
        entropies, keep = torch.empty_like(logprobs), hidden.shape[0] <= chunk and any(ctx.needs_input_grad)
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            kept, logprobs[rows], entropies[rows] = run(hidden[rows], weight, targets[rows], temperature, keep)
        ctx.save_for_backward(hidden, weight, targets, logprobs, entropies, kept)
        ctx.temperature, ctx.chunk, ctx.compiled = temperature, chunk, compiled
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        hidden, weight, targets, logprobs, entropies, kept = ctx.saved_tensors
        run, gradient = (_compiled_forward, _compiled()[1]) if ctx.compiled else (_eager_forward, _eager_gradient)
        g, g_entropy = torch.zeros_like(logprobs) if grads[0] is None else grads[0], grads[1]
        grad_hidden = torch.empty_like(hidden)
        pieces = range(0, hidden.shape[0], ctx.chunk)
        sum_dtype = weight.dtype if len(pieces) <= 1 else torch.float32
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if ctx.needs_input_grad[1] else None
        for start in pieces:
            rows = slice(start, start + ctx.chunk)
            kept_rows = kept
            if kept_rows is None:
                kept_rows, _, _ = run(hidden[rows], weight, targets[rows], ctx.temperature, True)
                assert kept_rows is not None
            of_entropies = None if g_entropy is None else g_entropy[rows]
            of_logits = gradient(
                kept_rows, targets[rows], ctx.temperature, logprobs[rows], entropies[rows], g[rows], of_entropies
            )
            grad_hidden[rows] = of_logits @ weight
            if grad_weight is not None:
                share = of_logits.t() @ hidden[rows]
                grad_weight = share if len(pieces) == 1 else grad_weight.add_(share)
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def token_statistics(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk_tokens: int, *, compiled: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of the targets and entropies of softmax(hidden weight^T / temperature).

    Args:
        hidden: [C, E].
        weight: [V, E], same dtype as hidden.
        targets: [C] int64.
        temperature: Divisor of the logits.
        chunk_tokens: Largest number of positions whose probabilities over V are in memory at a time.
        compiled: Whether log-softmax and its gradient are compiled.

    Returns:
        Two [C] float32 tensors, differentiable in hidden and weight.
    """
    return _TokenStatistics.apply(hidden, weight, targets, temperature, chunk_tokens, compiled)  # pyright: ignore[reportReturnType]
