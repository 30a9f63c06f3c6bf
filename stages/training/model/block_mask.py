"""Builds the block mask of flex_attention from segments, in memory and time that grow with tokens, not token pairs.

torch's `create_block_mask` evaluates the mask for every pair of tokens: 10 bytes x N^2, 43 GB at 65,536 tokens. Here
the attending pairs in each pair of blocks are counted instead. A segment attends to at most two runs of keys, its own
tokens and its prompt, and a run overlaps a block in an interval. Only the tables of blocks stay quadratic, because
flex_attention requires them: N^2 / 16,384 entries.

Shapes: N tokens, B blocks, S stretches (the parts of a segment in one block).
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stages.training.model.transfer import to_device
from stages.training.model.tree_attention import Window

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
"""Tokens of a block of queries or keys; flex_attention's default."""


def block_mask(
    segment_ids: Tensor, parent_ids: Tensor, device: torch.device, window: Window | None = None
) -> "BlockMask":
    """Returns the mask under which token i attends to j <= i of its segment and to its whole prompt.

    Args:
        segment_ids: [N] int on the CPU, the segment of each token; a segment is contiguous.
        parent_ids: [N] int on the CPU, the segment of each token's prompt, which comes before it; for a prompt token,
            its own segment.
        device: Device that computes the attention.
        window: Leaves out pairs that are too far from each other; None for none.
    """
    from torch.nn.attention.flex_attention import BlockMask

    segments, parents = to_device(segment_ids, device), to_device(parent_ids, device)
    tokens = segments.numel()

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & ((segments[query] == segments[key]) | (parents[query] == segments[key]))

    pairs = to_device(attending_pairs(segment_ids, parent_ids), device)
    some, full, mask_mod = pairs > 0, pairs == BLOCK * BLOCK, attends
    if window is not None:
        positions, reach = to_device(window.positions, device), window.tokens

        def attends_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return attends(batch, head, query, key) & (positions[query] - positions[key] < reach)

        least, most = (to_device(bounds, device) for bounds in _distances(window.positions))
        some, full, mask_mod = some & (least < reach), full & (most < reach), attends_near
    return BlockMask.from_kv_blocks(
        *_listed(some & ~full), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(tokens, tokens)
    )


def _distances(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns bounds of the distances from keys to queries in each pair of blocks: two of [B, B], queries x keys."""
    blocks = torch.split(positions, BLOCK)
    first, last = (torch.stack([bound(block) for block in blocks]) for bound in (torch.min, torch.max))
    return first[:, None] - last, last[:, None] - first


def attending_pairs(segment_ids: Tensor, parent_ids: Tensor) -> Tensor:
    """Returns the number of attending pairs of tokens in each pair of blocks.

    Args:
        segment_ids: [N] int on the CPU, as for `block_mask`.
        parent_ids: [N] int on the CPU, as for `block_mask`.

    Returns:
        [B, B] int32, queries x keys.
    """
    tokens = segment_ids.numel()
    segments, lengths = torch.unique_consecutive(segment_ids, return_counts=True)
    ends = torch.cumsum(lengths, 0)
    starts, order = ends - lengths, torch.argsort(segments)

    index = torch.arange(tokens)
    begins = torch.ones(tokens, dtype=torch.bool)
    begins[1:] = (segment_ids[1:] != segment_ids[:-1]) | (index[1:] % BLOCK == 0)
    first = torch.nonzero(begins).view(-1)  # [S]
    width = torch.diff(first, append=torch.tensor([tokens]))
    block = first // BLOCK
    prompt = order[torch.searchsorted(segments[order], parent_ids[first])]
    own = order[torch.searchsorted(segments[order], segment_ids[first])]
    branch = prompt != own

    blocks = -(-tokens // BLOCK)
    changes = torch.zeros(blocks, blocks + 2, dtype=torch.int32)
    _add(changes, block, starts[own], torch.maximum(starts[own], block * BLOCK), width)
    _add(changes, block[branch], starts[prompt][branch], ends[prompt][branch], width[branch])
    pairs = changes.cumsum(1, dtype=torch.int32)[:, :blocks].contiguous()
    triangles = width * (width + 1) // 2  # a stretch with itself: the part of its own segment in its own block
    pairs.view(-1).index_add_(0, block * (blocks + 1), triangles.to(torch.int32))
    return pairs


def _add(changes: Tensor, block: Tensor, start: Tensor, end: Tensor, width: Tensor) -> None:
    """Adds pairs of `width` queries in a block with the keys of [start, end), as differences along the keys' blocks.

    The keys of the first and of the last block are counted apart; those between are whole blocks.
    """
    some = end > start
    block, start, end, width = block[some], start[some], end[some], width[some]
    row, first, last = block * changes.shape[1], start // BLOCK, (end - 1) // BLOCK
    in_first = torch.minimum(end, (first + 1) * BLOCK) - start
    in_last = torch.where(last > first, end - last * BLOCK, 0)
    steps = (
        (first, in_first),
        (first + 1, torch.where(last > first, BLOCK, 0) - in_first),
        (last, torch.where(last > first, in_last - BLOCK, 0)),
        (last + 1, torch.where(last > first, -in_last, 0)),
    )
    for column, change in steps:
        changes.view(-1).index_add_(0, row + column, (width * change).to(torch.int32))


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns for each query block the number of chosen key blocks, and all key blocks with these first: int32."""
    order = torch.argsort(chosen.int(), dim=-1, descending=True, stable=True).int()
    return chosen.sum(-1, dtype=torch.int32)[None, None], order[None, None]
