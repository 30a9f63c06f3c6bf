"""Attention over prompts and their completions on the CPU, which computes each needed pair of tokens exactly once.

The tokens of a micro-batch are flat, without padding. Each token belongs to one segment, a prompt or a completion. Its
softmax has two parts: its own segment up to itself and, in a completion, the whole prompt. torch's flash kernel
computes each part separately, and the results are merged by their log-sum-exp. Given the merged log-sum-exp, the
kernel's backward yields exactly the part's share of the gradient. Own segments are computed in float32, because the
kernel's bf16 backward is four times slower on short ones.

Shapes: N tokens, H query heads, K key heads, M = H / K, D head width, B segments or groups of a part,
Q queries, L keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

PADDING_LIMIT = 1.25
"""Segments are batched as long as padding them to the longest multiplies the work by at most this factor."""


@dataclass(frozen=True)
class Part:
    """Queries and keys that are computed as one batched product.

    Attributes:
        queries: [B, Q] flat token indices, padded with 0 at the end.
        keys: [B, L] flat token indices, padded with 0 at the end.
        real_queries: [B, Q] bool, False in padding; None without padding.
        real_keys: [B, L] bool, False in padding; None without padding.
        causal: Whether queries and keys are the same tokens and a query attends to keys up to itself.
        near: [B, Q, L] bool, the pairs that attend, for a window that leaves some out; None otherwise.
    """

    queries: Tensor
    keys: Tensor
    real_queries: Tensor | None
    real_keys: Tensor | None
    causal: bool
    near: Tensor | None = None


@dataclass(frozen=True)
class Window:
    """Restricts attention to near tokens.

    Attributes:
        positions: [N] position of each token in its sequence.
        tokens: A token attends to itself and to the `tokens` - 1 positions before it.
    """

    positions: Tensor
    tokens: int

    def near(self, part: Part) -> Tensor | None:
        """Returns which of a part's pairs attend, [B, Q, L]; None if the window leaves none of them out."""
        distance = self.positions[part.queries][:, :, None] - self.positions[part.keys][:, None]
        real = torch.ones(distance.shape, dtype=torch.bool)
        if part.real_queries is not None:
            real &= part.real_queries[:, :, None]
        if part.real_keys is not None:
            real &= part.real_keys[:, None]
        if not (real & (distance >= self.tokens)).any():
            return None
        near = real & (distance >= 0) & (distance < self.tokens)
        if part.real_queries is not None:  # padding attends to something, or its output would be NaN
            near[..., 0] |= ~part.real_queries
        return near


@dataclass(frozen=True)
class TreePlan:
    """The parts of one micro-batch.

    Attributes:
        own: Segments that attend to themselves; every token is in exactly one of them.
        prompts: Completions that attend to their prompts.
    """

    own: list[Part]
    prompts: list[Part]


def _padded(runs: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Returns stacked index tensors [B, longest], and a mask of the real indices; None if there is no padding."""
    width = max(run.numel() for run in runs)
    if all(run.numel() == width for run in runs):
        return torch.stack(runs), None
    index = torch.zeros(len(runs), width, dtype=torch.int64)
    real = torch.zeros(len(runs), width, dtype=torch.bool)
    for row, run in enumerate(runs):
        index[row, : run.numel()] = run
        real[row, : run.numel()] = True
    return index, real


def _batches(costs: list[int]) -> Iterator[list[int]]:
    """Yields batches of items of similar cost, largest first, so that padding stays below `PADDING_LIMIT`."""
    order = sorted(range(len(costs)), key=lambda item: -costs[item])
    batch: list[int] = []
    total = 0
    for item in order:
        if batch and (len(batch) + 1) * costs[batch[0]] > PADDING_LIMIT * (total + costs[item]):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += costs[item]
    if batch:
        yield batch


def plan_tree(segment_ids: Tensor, parent_ids: Tensor, window: Window | None = None) -> TreePlan:
    """Returns the parts that the attention of a flat micro-batch consists of.

    Args:
        segment_ids: [N] int, the segment of each token; a segment is contiguous.
        parent_ids: [N] int, the segment of each token's prompt; for a prompt token, its own segment.
        window: Leaves out pairs that are too far from each other; None for none.
    """
    if window is not None and int(window.positions.max()) < window.tokens:
        window = None
    segments, lengths = torch.unique_consecutive(segment_ids, return_counts=True)
    ends = torch.cumsum(lengths, 0)
    runs = [torch.arange(int(end) - int(length), int(end)) for end, length in zip(ends, lengths, strict=True)]
    parents = parent_ids[ends - 1]
    number = {int(segment): index for index, segment in enumerate(segments)}
    branches: dict[int, list[int]] = {}
    for index, (segment, parent) in enumerate(zip(segments.tolist(), parents.tolist(), strict=True)):
        if segment != parent:
            branches.setdefault(number[parent], []).append(index)

    own: list[Part] = []
    for batch in _batches([run.numel() for run in runs]):
        index, real = _padded([runs[item] for item in batch])
        own.append(_within(window, Part(index, index, real, real, causal=True)))
    prompts: list[Part] = []
    groups = list(branches.items())
    tokens = [torch.cat([runs[item] for item in children]) for _, children in groups]
    if window is not None:  # a completion's tokens beyond the window of its prompt's last token see none of it
        places, last = window.positions, [int(window.positions[runs[parent][-1]]) for parent, _ in groups]
        tokens = [run[places[run] - end < window.tokens] for run, end in zip(tokens, last, strict=True)]
    for batch in _batches([run.numel() for run in tokens]):
        queries, real_queries = _padded([tokens[item] for item in batch])
        keys, real_keys = _padded([runs[groups[item][0]] for item in batch])
        prompts.append(_within(window, Part(queries, keys, real_queries, real_keys, causal=False)))
    return TreePlan(own, prompts)


def _within(window: Window | None, part: Part) -> Part:
    return part if window is None else replace(part, near=window.near(part))


def _gathered(x: Tensor, index: Tensor, real: Tensor | None, key_heads: int) -> Tensor:
    """[N, H, D] -> [B * K, M, Q, D], zero where padded."""
    batch, width = index.shape
    y = x.index_select(0, index.reshape(-1)).view(batch, width, key_heads, -1, x.shape[-1])
    if real is not None:
        y = y * real.view(batch, width, 1, 1, 1)
    return y.permute(0, 2, 3, 1, 4).reshape(batch * key_heads, -1, width, x.shape[-1])


def _flat(y: Tensor, batch: int, real: Tensor | None) -> Tensor:
    """[B * K, M, Q, ...] -> [real tokens, H, ...]."""
    width = y.shape[2]
    rest = tuple(y.shape[3:])
    y = y.reshape(batch, -1, y.shape[1], width, *rest).movedim(3, 1).reshape(batch * width, -1, *rest)
    return y if real is None else y[real.view(-1)]


def _tokens(part: Part) -> tuple[Tensor, Tensor]:
    """Returns the flat indices of a part's real queries and real keys."""
    queries = part.queries.view(-1) if part.real_queries is None else part.queries[part.real_queries]
    keys = part.keys.view(-1) if part.real_keys is None else part.keys[part.real_keys]
    return queries, keys


def _kernel_inputs(q: Tensor, k: Tensor, v: Tensor, part: Part, scale: float) -> tuple[list[Tensor], dict[str, Any]]:
    """Returns the flash kernel's inputs for a part: q, k, v as [B * K, heads, length, D], and its options.

    The M query heads that share keys stay separate heads. Folded into the queries they would read the keys once, but
    the kernel's backward distributes heads, not queries, over threads.
    """
    key_heads = k.shape[1]
    inputs = [_gathered(q, part.queries, part.real_queries, key_heads)]
    inputs += [_gathered(x, part.keys, part.real_keys, key_heads) for x in (k, v)]
    if part.causal:
        inputs = [x.float() for x in inputs]
    options: dict[str, Any] = {"is_causal": part.causal and part.near is None, "scale": scale, "attn_mask": None}
    attends = part.near
    if attends is None and part.real_keys is not None and not part.causal:
        attends = part.real_keys[:, None]
    if attends is not None:
        mask = torch.zeros(attends.shape, dtype=inputs[0].dtype).masked_fill_(~attends, -torch.inf)
        options["attn_mask"] = mask.repeat_interleave(key_heads, 0)[:, None]
    return [x.expand(-1, inputs[0].shape[1], -1, -1) for x in inputs], options


def _part_forward(q: Tensor, k: Tensor, v: Tensor, part: Part, scale: float) -> tuple[Tensor, Tensor]:
    """Returns the output [real tokens, H, D] and log-sum-exp [real tokens, H] of one part alone, float32."""
    inputs, options = _kernel_inputs(q, k, v, part, scale)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*inputs, **options)
    batch, width = part.queries.shape
    out = out.float().reshape(batch * k.shape[1], -1, width, q.shape[-1])
    return _flat(out, batch, part.real_queries), _flat(lse.reshape(out.shape[:3]), batch, part.real_queries)


def _part_backward(
    inputs: tuple[Tensor, Tensor, Tensor], grad: Tensor, out: Tensor, lse: Tensor, part: Part, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the part's share of the gradients.

    Args:
        inputs: q, k and v as in `TreeAttention`.
        grad: [N, H, D] gradient of the output.
        out: [N, H, D] merged output.
        lse: [N, H] float32, merged log-sum-exp.
        part: Queries and keys.
        scale: Factor of the products of queries and keys.

    Returns:
        For q, k and v: [real tokens, heads, D] in float32.
    """
    (q, k, v), key_heads = inputs, inputs[1].shape[1]
    kernel_inputs, options = _kernel_inputs(q, k, v, part, scale)
    shape, dtype = kernel_inputs[0].shape, kernel_inputs[0].dtype
    grads, outs = (
        _gathered(x, part.queries, part.real_queries, key_heads).to(dtype).reshape(shape) for x in (grad, out)
    )
    merged = _gathered(lse.unsqueeze(-1), part.queries, part.real_queries, key_heads).reshape(shape[:3])
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grads, *kernel_inputs, outs, merged, dropout_p=0.0, **options
    )
    batch, width = part.queries.shape
    dq = dq.float().reshape(batch * key_heads, -1, width, q.shape[-1])
    dk, dv = (x.float().sum(1, keepdim=True) for x in (dk, dv))
    return (
        _flat(dq, batch, part.real_queries),
        _flat(dk, batch, part.real_keys),
        _flat(dv, batch, part.real_keys),
    )


class TreeAttention(torch.autograd.Function):
    """softmax(scale q k^T) v over the pairs of a plan."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: TreePlan, scale: float) -> Tensor:
        """Computes the attention.

        Args:
            ctx: Autograd context.
            q: [N, H, D].
            k: [N, K, D].
            v: [N, K, D].
            plan: The parts of the micro-batch.
            scale: Factor of the products of queries and keys.

        Returns:
            [N, H, D] in q's dtype.
        """
        out = torch.empty(q.shape, dtype=torch.float32)
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        for part in plan.own:
            queries, _ = _tokens(part)
            o, l = _part_forward(q, k, v, part, scale)
            out.index_copy_(0, queries, o)
            lse.index_copy_(0, queries, l)
        for part in plan.prompts:
            queries, _ = _tokens(part)
            o, l = _part_forward(q, k, v, part, scale)
            before = lse.index_select(0, queries)
            merged = torch.logaddexp(before, l)
            o = o * (l - merged).exp_().unsqueeze(-1)
            o += out.index_select(0, queries).mul_((before - merged).exp_().unsqueeze(-1))
            out.index_copy_(0, queries, o)
            lse.index_copy_(0, queries, merged)
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, lse)
        ctx.plan, ctx.scale = plan, scale
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the gradients of q, k and v."""
        q, k, v, out, lse = ctx.saved_tensors
        totals = [torch.zeros(x.shape, dtype=torch.float32) for x in (q, k, v)]
        for part in (*ctx.plan.own, *ctx.plan.prompts):
            queries, keys = _tokens(part)
            shares = _part_backward((q, k, v), grad, out, lse, part, ctx.scale)
            for total, tokens, share in zip(totals, (queries, keys, keys), shares, strict=True):
                total.index_add_(0, tokens, share)
        dq, dk, dv = (total.to(x.dtype) for total, x in zip(totals, (q, k, v), strict=True))
        return dq, dk, dv, None, None
