"""The output head fused with log-softmax, computed in chunks for chosen positions only.

CPUs compute in cache-sized blocks. On GPUs, what happens between the products with the head is compiled into one kernel
forward and one backward: they read the logits once or twice, and write nothing of the size of the vocabulary but the
gradient. The same steps one by one move four times the bytes, products included (`tests.benchmarks.roofline`).

Shapes: C positions, E width, V vocabulary.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

CACHE_ELEMENTS = 1 << 22
"""Number of logits that are turned into probabilities at a time on the CPU (16 MiB of float32)."""


def _probabilities(hidden: Tensor, weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities and probabilities, [C, V] float32."""
    logp = torch.log_softmax((hidden @ weight.t()).float().div_(temperature), -1)
    return logp, logp.exp()


def _blocks(hidden: Tensor, vocabulary: int, chunk: int) -> list[slice]:
    """Returns slices of positions to compute at a time: cache-sized on the CPU, `chunk` on CUDA."""
    count = hidden.shape[0]
    rows = max(16, CACHE_ELEMENTS // vocabulary) if hidden.device.type == "cpu" else max(1, chunk)
    return [slice(start, min(count, start + rows)) for start in range(0, count, rows)]


class _TokenStatistics(torch.autograd.Function):
    """Keeps the probabilities for backward if all positions fit into one chunk, else recomputes them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        count, vocabulary = hidden.shape[0], weight.shape[0]
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        keep = count <= chunk and any(ctx.needs_input_grad)
        saved_p = hidden.new_empty(count, vocabulary) if keep else None
        for rows in _blocks(hidden, vocabulary, chunk):
            logp, p = _probabilities(hidden[rows], weight, temperature)
            logprobs[rows] = logp.gather(1, targets[rows, None]).squeeze(1)
            if saved_p is not None:
                saved_p[rows] = p
            entropies[rows] = -torch.linalg.vecdot(p, logp)
        ctx.save_for_backward(hidden, weight, targets, logprobs, entropies, saved_p)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden, weight, targets, logprobs, entropies, saved_p = ctx.saved_tensors
        grad_logprobs = torch.zeros_like(logprobs) if grads[0] is None else grads[0] / ctx.temperature
        grad_entropies = None if grads[1] is None else grads[1] / ctx.temperature
        grad_hidden = torch.empty_like(hidden)
        pieces = range(0, hidden.shape[0], ctx.chunk)
        sum_dtype = weight.dtype if len(pieces) <= 1 else torch.float32
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if ctx.needs_input_grad[1] else None
        for start in pieces:
            piece = slice(start, start + ctx.chunk)
            p = _recomputed(hidden[piece], weight, ctx.temperature) if saved_p is None else saved_p
            for block in _blocks(hidden[piece], weight.shape[0], ctx.chunk):
                rows = slice(start + block.start, start + block.stop)
                # The gradient of logit j is [j = target] g - p_j (g + g_H (log p_j + H)), with the gradients g of the
                # log-probability and g_H of the entropy H. At the target p_j comes from the float32 log-probability.
                g = grad_logprobs[rows, None]
                if grad_entropies is not None:
                    logp = p[block].float().clamp(min=1e-30).log_()
                    logp.add_(entropies[rows, None]).mul_(grad_entropies[rows, None]).add_(g)
                    p[block] = p[block] * logp.neg_()
                    factor = g + grad_entropies[rows, None] * (logprobs[rows, None] + entropies[rows, None])
                else:
                    p[block].mul_(-g)
                    factor = g
                at_target = g - factor * logprobs[rows, None].exp()
                p[block].scatter_(1, targets[rows, None], at_target.to(p.dtype))
            grad_hidden[piece] = p @ weight
            if grad_weight is not None:
                share = p.t() @ hidden[piece]
                grad_weight = share if len(pieces) == 1 else grad_weight.add_(share)
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


def _recomputed(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Returns probabilities [C, V] in the compute dtype."""
    p = hidden.new_empty(hidden.shape[0], weight.shape[0])
    for rows in _blocks(hidden, weight.shape[0], hidden.shape[0]):
        p[rows] = _probabilities(hidden[rows], weight, temperature)[1]
    return p


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
    """Returns the gradient of logits, [C, V] in their type; the formula is that of `_TokenStatistics`."""
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


class _CompiledStatistics(torch.autograd.Function):
    """Keeps the logits for backward if all positions fit into one chunk, else recomputes them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        statistics, _ = _compiled()
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropies, logits = torch.empty_like(logprobs), None
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            logits = hidden[rows] @ weight.t()
            logprobs[rows], entropies[rows] = statistics(logits, targets[rows], temperature)
        kept = logits if hidden.shape[0] <= chunk and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(hidden, weight, targets, logprobs, entropies, kept)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
        hidden, weight, targets, logprobs, entropies, kept = ctx.saved_tensors
        _, gradient = _compiled()
        g, g_entropy = torch.zeros_like(logprobs) if grads[0] is None else grads[0], grads[1]
        grad_hidden = torch.empty_like(hidden)
        sum_dtype = weight.dtype if hidden.shape[0] <= ctx.chunk else torch.float32
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            logits = hidden[rows] @ weight.t() if kept is None else kept
            of_entropies = None if g_entropy is None else g_entropy[rows]
            of_logits = gradient(
                logits, targets[rows], ctx.temperature, logprobs[rows], entropies[rows], g[rows], of_entropies
            )
            grad_hidden[rows] = of_logits @ weight
            if grad_weight is not None:
                grad_weight.add_(of_logits.t() @ hidden[rows])
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None


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
    function = _CompiledStatistics if compiled else _TokenStatistics
    return function.apply(hidden, weight, targets, temperature, chunk_tokens)  # pyright: ignore[reportReturnType]
