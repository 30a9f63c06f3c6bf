"""Attention over prompts and their branches on the CPU: every pair that is needed once, no other pair.

The tokens of a micro-batch lie flat, without padding. Each belongs to one segment (a prompt or a completion). Its
softmax is over two parts: its own segment up to itself, and, for a completion, the whole of its prompt. The parts are
computed apart, each as dense matrix products in blocks that stay in the cache, and merged by their log-sum-exp;
backward uses the merged one, so that each part yields exactly its share of the gradient.

Shapes: N tokens, H query heads, K key heads, M = H / K, D head width, B segments or groups of a block,
Q queries, L keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 18
"""Scores held at a time: 1 MiB of float32, which fits in the second-level cache."""

CAUSAL_ROWS = 128
"""Queries of a causal block: more would compute pairs above the diagonal, fewer would cost calls."""

PADDING_LIMIT = 1.25
"""Segments are computed together while padding them to the longest costs at most this factor."""


@dataclass(frozen=True)
class Part:
    """Queries and keys that attend as one batched product.

    Attributes:
        queries: [B, Q] flat token indices, padded with 0 at the end.
        keys: [B, L] flat token indices, padded with 0 at the end.
        real_queries: [B, Q] bool, or None where nothing is padded.
        real_keys: [B, L] bool, or None where nothing is padded.
        causal: queries and keys are the same tokens and a query sees the keys up to itself.
    """

    queries: Tensor
    keys: Tensor
    real_queries: Tensor | None
    real_keys: Tensor | None
    causal: bool


@dataclass(frozen=True)
class TreePlan:
    """The parts of one micro-batch: own segments (each token once), then completions over their prompts."""

    own: list[Part]
    prompts: list[Part]


def _padded(runs: list[Tensor]) -> tuple[Tensor, Tensor | None]:
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
    """Groups items of similar cost, largest first, so that padding stays below its limit."""
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


def plan_tree(segment_ids: Tensor, parent_ids: Tensor) -> TreePlan:
    """Lays out the attention of a flat micro-batch.

    Args:
        segment_ids: [N] int, the segment of each token; a segment is contiguous.
        parent_ids: [N] int, the segment of the prompt; a prompt token's own segment.

    Returns:
        The parts to compute.
    """
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
        own.append(Part(index, index, real, real, causal=True))
    prompts: list[Part] = []
    groups = list(branches.items())
    tokens = [torch.cat([runs[item] for item in children]) for _, children in groups]
    for batch in _batches([run.numel() for run in tokens]):
        queries, real_queries = _padded([tokens[item] for item in batch])
        keys, real_keys = _padded([runs[groups[item][0]] for item in batch])
        prompts.append(Part(queries, keys, real_queries, real_keys, causal=False))
    return TreePlan(own, prompts)


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
    y = y.view(batch, -1, y.shape[1], width, *rest).movedim(3, 1).reshape(batch * width, -1, *rest)
    return y if real is None else y[real.view(-1)]


def _tokens(part: Part) -> tuple[Tensor, Tensor]:
    queries = part.queries.view(-1) if part.real_queries is None else part.queries[part.real_queries]
    keys = part.keys.view(-1) if part.real_keys is None else part.keys[part.real_keys]
    return queries, keys


@dataclass(frozen=True)
class _Block:
    """A cut that fits the cache: items (B * K), queries, how many keys they see; causal parts hide later keys."""

    items: slice
    rows: slice
    seen: int
    causal: bool


def _blocks(part: Part, items: int, fold: int) -> Iterator[_Block]:
    width, keys = part.queries.shape[1], part.keys.shape[1]
    rows = max(16, BLOCK_ELEMENTS // (fold * keys))
    rows = min(width, rows, CAUSAL_ROWS if part.causal else width)
    for start in range(0, width, rows):
        stop = min(width, start + rows)
        seen = stop if part.causal else keys
        together = max(1, BLOCK_ELEMENTS // (fold * (stop - start) * seen))
        for first in range(0, items, together):
            yield _Block(slice(first, min(items, first + together)), slice(start, stop), seen, part.causal)


@cache
def _later(rows: int) -> Tensor:
    return torch.ones(rows, rows, dtype=torch.bool).triu_(1)


def _scores(q: Tensor, keys: Tensor, padding: Tensor | None, block: _Block, scale: float) -> Tensor:
    """[B * K, M, Q, D] x [B * K, L, D] -> float32 scores of a block [I, M, R, seen], -inf where none may look."""
    q = q[block.items, :, block.rows]
    items, fold, count, depth = q.shape
    s = torch.bmm(q.reshape(items, fold * count, depth), keys[block.items, : block.seen].transpose(1, 2))
    s = s.float().mul_(scale).view(items, fold, count, block.seen)
    if block.causal:
        s[..., block.rows].masked_fill_(_later(count), -torch.inf)
    elif padding is not None:
        s.masked_fill_(padding[block.items], -torch.inf)
    return s


def _padding(part: Part, key_heads: int) -> Tensor | None:
    """[B * K, 1, 1, L] true where a key is padding."""
    if part.causal or part.real_keys is None:
        return None
    return ~part.real_keys.repeat_interleave(key_heads, 0)[:, None, None]


def _part_forward(q: Tensor, k: Tensor, v: Tensor, part: Part, scale: float) -> tuple[Tensor, Tensor]:
    """Returns the part's own output [B * K, M, Q, D] in float32 and log-sum-exp [B * K, M, Q]."""
    key_heads = k.shape[1]
    queries = _gathered(q, part.queries, part.real_queries, key_heads)
    keys = _gathered(k, part.keys, part.real_keys, key_heads).squeeze(1)
    values = _gathered(v, part.keys, part.real_keys, key_heads).squeeze(1)
    items, fold, _, depth = queries.shape
    padding = _padding(part, key_heads)
    out = torch.empty(queries.shape, dtype=torch.float32)
    lse = torch.empty(queries.shape[:3], dtype=torch.float32)
    for block in _blocks(part, items, fold):
        s = _scores(queries, keys, padding, block, scale)
        top = s.amax(-1, keepdim=True)
        s.sub_(top).exp_()
        total = s.sum(-1, keepdim=True)
        mixed = torch.bmm(s.to(v.dtype).view(s.shape[0], -1, block.seen), values[block.items, : block.seen]).float()
        out[block.items, :, block.rows] = mixed.view(*s.shape[:3], depth).div_(total)
        lse[block.items, :, block.rows] = top.add_(total.log_()).squeeze(-1)
    return out, lse


def _part_backward(
    inputs: tuple[Tensor, Tensor, Tensor], grad: Tensor, stats: Tensor, part: Part, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The part's share of the gradients.

    Args:
        inputs: q, k, v as in `TreeAttention`.
        grad: [N, H, D] of the output.
        stats: [N, H, 2] merged log-sum-exp, and the dot product of output and its gradient.
        part: queries and keys.
        scale: of the scores.

    Returns:
        [B * K, M, Q, D], [B * K, 1, L, D], [B * K, 1, L, D] in float32.
    """
    q, k, v = inputs
    key_heads = k.shape[1]
    queries = _gathered(q, part.queries, part.real_queries, key_heads)
    grads = _gathered(grad, part.queries, part.real_queries, key_heads)
    keys = _gathered(k, part.keys, part.real_keys, key_heads).squeeze(1)
    values = _gathered(v, part.keys, part.real_keys, key_heads).squeeze(1)
    items, fold, _, depth = queries.shape
    stats = _gathered(stats, part.queries, None, key_heads)
    padding = _padding(part, key_heads)
    dq = torch.empty(queries.shape, dtype=torch.float32)
    dk = torch.zeros(keys.shape, dtype=torch.float32)
    dv = torch.zeros(keys.shape, dtype=torch.float32)
    for block in _blocks(part, items, fold):
        chosen, rows, seen = block.items, block.rows, block.seen
        p = _scores(queries, keys, padding, block, scale).sub_(stats[chosen, :, rows, :1]).exp_()
        count = p.shape[0]
        g = grads[chosen, :, rows].reshape(count, -1, depth)
        dv[chosen, :seen] += torch.bmm(p.view(count, -1, seen).to(v.dtype).transpose(1, 2), g)
        ds = torch.bmm(g, values[chosen, :seen].transpose(1, 2)).float().view(p.shape)
        ds = ds.sub_(stats[chosen, :, rows, 1:]).mul_(p).to(v.dtype).view(count, -1, seen)
        dq[chosen, :, rows] = torch.bmm(ds, keys[chosen, :seen]).float().view(count, fold, -1, depth)
        dk[chosen, :seen] += torch.bmm(ds.transpose(1, 2), queries[chosen, :, rows].reshape(count, -1, depth))
    return dq.mul_(scale), dk.mul_(scale).unsqueeze(1), dv.unsqueeze(1)


class TreeAttention(torch.autograd.Function):
    """softmax(q k^T * scale) v over the pairs of a plan."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: TreePlan) -> Tensor:
        """Attends.

        Args:
            ctx: autograd's.
            q: [N, H, D].
            k: [N, K, D].
            v: [N, K, D].
            plan: the parts; every token is a query of exactly one own part.

        Returns:
            [N, H, D] in q's dtype.
        """
        scale = q.shape[-1] ** -0.5
        out = torch.empty(q.shape, dtype=torch.float32)
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        for part in plan.own:
            o, l = _part_forward(q, k, v, part, scale)
            queries, _ = _tokens(part)
            batch = part.queries.shape[0]
            out.index_copy_(0, queries, _flat(o, batch, part.real_queries))
            lse.index_copy_(0, queries, _flat(l, batch, part.real_queries))
        for part in plan.prompts:
            o, l = _part_forward(q, k, v, part, scale)
            queries, _ = _tokens(part)
            batch = part.queries.shape[0]
            o, l = _flat(o, batch, part.real_queries), _flat(l, batch, part.real_queries)
            before = lse.index_select(0, queries)
            merged = torch.logaddexp(before, l)
            o = o.mul_((l - merged).exp_().unsqueeze(-1))
            o += out.index_select(0, queries).mul_((before - merged).exp_().unsqueeze(-1))
            out.index_copy_(0, queries, o)
            lse.index_copy_(0, queries, merged)
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, lse)
        ctx.plan, ctx.scale = plan, scale
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of q, k and v."""
        q, k, v, out, lse = ctx.saved_tensors
        stats = torch.stack([lse, (grad.float() * out.float()).sum(-1)], -1)
        dq = torch.empty(q.shape, dtype=torch.float32)
        dk = torch.empty(k.shape, dtype=torch.float32)
        dv = torch.empty(v.shape, dtype=torch.float32)
        for part in ctx.plan.own:
            parts = _part_backward((q, k, v), grad, stats, part, ctx.scale)
            queries, _ = _tokens(part)
            for whole, share in zip((dq, dk, dv), parts, strict=True):
                whole.index_copy_(0, queries, _flat(share, part.queries.shape[0], part.real_queries))
        for part in ctx.plan.prompts:
            parts = _part_backward((q, k, v), grad, stats, part, ctx.scale)
            queries, keys = _tokens(part)
            batch = part.queries.shape[0]
            dq.index_add_(0, queries, _flat(parts[0], batch, part.real_queries))
            dk.index_add_(0, keys, _flat(parts[1], batch, part.real_keys))
            dv.index_add_(0, keys, _flat(parts[2], batch, part.real_keys))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None
