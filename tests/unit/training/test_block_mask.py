"""The block mask from segments equals the one that torch computes from every pair of tokens."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from stages.training.model.block_mask import BLOCK, attending_pairs, block_mask

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
