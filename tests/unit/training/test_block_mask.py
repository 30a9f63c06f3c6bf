"""The block mask from segments equals the one that torch computes from every pair of tokens."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from stages.training.model.block_mask import BLOCK, attending_pairs, block_mask
from stages.training.model.tree_attention import Window

CPU = torch.device("cpu")
LENGTHS = st.one_of(st.integers(1, 9), st.sampled_from([64, 127, 128, 129, 256, 300]))
GROUPS = st.lists(st.lists(LENGTHS, min_size=1, max_size=6), min_size=1, max_size=5)
"""Lengths of the prompt and of the completions of each group."""


def packed(groups: list[list[int]], numbers: list[int]) -> tuple[Tensor, Tensor]:
    """Segments and parents of a flat micro-batch; `numbers` are the names of its segments in their order."""
    names = iter(numbers)
    segments: list[int] = []
    parents: list[int] = []
    for group in groups:
        parent = None
        for length in group:
            name = next(names)
            parent = name if parent is None else parent
            segments += [name] * length
            parents += [parent] * length
    return torch.tensor(segments), torch.tensor(parents)


def from_pairs(segments: Tensor, parents: Tensor) -> BlockMask:
    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & ((segments[query] == segments[key]) | (parents[query] == segments[key]))

    return create_block_mask(attends, None, None, len(segments), len(segments), device="cpu")


@settings(max_examples=30)
@given(groups=GROUPS, seed=st.integers(0, 2**31))
@example(groups=[[1]], seed=0)
@example(groups=[[128, 128, 128]], seed=0)
@example(groups=[[300, 700], [256, 256]], seed=1)
def test_every_table_equals_that_of_torch(groups: list[list[int]], seed: int) -> None:
    count = sum(map(len, groups))
    names = torch.randperm(3 * count, generator=torch.Generator().manual_seed(seed))[:count]
    segments, parents = packed(groups, names.tolist())
    ours, expected = block_mask(segments, parents, CPU), from_pairs(segments, parents)
    assert ours.shape == expected.shape and ours.BLOCK_SIZE == expected.BLOCK_SIZE
    for name in BlockMask._TENSOR_ATTRS:  # pyright: ignore[reportPrivateUsage]
        table, table_of_torch = getattr(ours, name), getattr(expected, name)
        if table_of_torch is None:
            assert table is None, name
        else:
            assert table.dtype == table_of_torch.dtype and torch.equal(table, table_of_torch), name
    index = torch.arange(len(segments))
    mods = (mask.mask_mod(index[:1], index[:1], index[:, None], index[None]) for mask in (ours, expected))
    assert torch.equal(*mods)


def test_pairs_of_two_blocks_by_hand() -> None:
    # A prompt of 100 tokens and two completions of 20 and 30: blocks of 128 and 22 tokens.
    segments, parents = packed([[100, 20, 30]], [5, 2, 9])
    # Block 0 holds the prompt, the first completion and 8 tokens of the second; block 1 its other 22.
    first = 100 * 101 // 2 + 20 * 21 // 2 + 20 * 100 + 8 * 9 // 2 + 8 * 100
    assert attending_pairs(segments, parents).tolist() == [[first, 0], [22 * (100 + 8), 22 * 23 // 2]]


def test_many_tokens_need_no_pairs() -> None:
    # Every pair of these tokens, a byte each, would take 67 GB.
    groups = [[4096] + [8192] * 7] * 4 + [[512] + [64] * 100] * 4
    segments, parents = packed(groups, list(range(4 * 8 + 4 * 101)))
    assert segments.numel() == 4 * (4096 + 7 * 8192 + 512 + 6400) > 250_000
    pairs = attending_pairs(segments, parents)
    lengths = torch.tensor([group_length for group in groups for group_length in group])
    prompts = torch.tensor([group[0] * sum(group[1:]) for group in groups])
    assert int(pairs.sum(dtype=torch.int64)) == int((lengths * (lengths + 1) // 2).sum() + prompts.sum())
    assert int(pairs.max()) == BLOCK * BLOCK


@settings(max_examples=20)
@given(groups=GROUPS, tokens=st.sampled_from([1, 5, 128, 200, 1000]))
@example(groups=[[300, 700, 20], [256, 256]], tokens=130)
def test_a_window_leaves_out_far_pairs_and_their_blocks(groups: list[list[int]], tokens: int) -> None:
    segments, parents = packed(groups, list(range(sum(map(len, groups)))))
    lengths = [(length, group[0] if place else 0) for group in groups for place, length in enumerate(group)]
    positions = torch.cat([torch.arange(start, start + length) for length, start in lengths])
    mask = block_mask(segments, parents, CPU, Window(positions, tokens))
    index = torch.arange(len(segments))
    pair = index[:, None], index[None]
    related = from_pairs(segments, parents).mask_mod(index[:1], index[:1], *pair)
    expected = related & (positions[:, None] - positions < tokens)
    assert torch.equal(mask.mask_mod(index[:1], index[:1], *pair), expected)
    blocks = -(-len(segments) // BLOCK)
    kinds = {"partial": (mask.kv_num_blocks, mask.kv_indices), "full": (mask.full_kv_num_blocks, mask.full_kv_indices)}
    listed = {kind: torch.zeros(blocks, blocks, dtype=torch.bool) for kind in kinds}
    for kind, (counts, order) in kinds.items():
        assert counts is not None and order is not None
        for row in range(blocks):
            listed[kind][row, order[0, 0, row, : counts[0, 0, row]].long()] = True
    for row, column in torch.cartesian_prod(torch.arange(blocks), torch.arange(blocks)).tolist():
        inside = expected[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK]
        if listed["full"][row, column]:
            assert inside.all() and inside.numel() == BLOCK * BLOCK
        else:
            assert listed["partial"][row, column] or not inside.any()


def test_blocks_that_a_window_does_not_reach_are_not_computed() -> None:
    segments, parents = packed([[20 * BLOCK]], [0])
    mask = block_mask(segments, parents, CPU, Window(torch.arange(20 * BLOCK), BLOCK))
    assert int(mask.kv_num_blocks.sum()) + int(mask.full_kv_num_blocks.sum()) == 20 + 19
