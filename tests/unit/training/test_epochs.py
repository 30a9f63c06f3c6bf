"""Each pass after the first takes other mini-batches, which hold as much as those that were packed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.training.epochs import epoch_steps
from stages.training.trainer_batch import TrainerBatch
from tests.support.trees import VOCAB, tree_batch

Passes = list[list[list[int]]]


def read(folder: Path, columns: dict[str, NDArray[Any]]) -> TrainerBatch:
    save_file(columns, folder / "batch.safetensors")
    return TrainerBatch(folder / "batch.safetensors", VOCAB)


def holds(batch: TrainerBatch, rows: list[int]) -> tuple[int, int, int]:
    """Numbers of rows, groups and completions of a mini-batch."""
    addresses, completions = batch.loss_sequences(rows)
    return len(rows), batch.groups(addresses).unique().numel(), completions.unique().numel()


def assert_fair(batch: TrainerBatch, passes: Passes) -> None:
    """Every pass has every row once, and mini-batches that hold what the packed ones hold."""
    for steps in passes:
        assert sorted(row for rows in steps for row in rows) == list(range(batch.shape[0]))
        assert sorted(holds(batch, rows) for rows in steps) == sorted(holds(batch, rows) for rows in batch.steps)


@pytest.fixture
def mixed(tmp_path: Path) -> TrainerBatch:
    """12 rows of one or two groups with one or two completions each, in four mini-batches."""
    return read(tmp_path, tree_batch(3, [1, 2, 1, 1, 2, 1] * 2, steps=4, branches=(1, 3), prompt=(5, 9)))


def test_later_passes_draw_the_mini_batches_anew(mixed: TrainerBatch) -> None:
    passes = epoch_steps(mixed, 4, "shuffled", 7)
    assert passes[0] == mixed.steps, "the first pass is the one that was packed"
    assert_fair(mixed, passes)
    compositions = [{tuple(rows) for rows in steps} for steps in passes]
    assert all(a != b for i, a in enumerate(compositions) for b in compositions[:i]), "not only the order differs"
    assert passes == epoch_steps(mixed, 4, "shuffled", 7)
    assert passes[:2] == epoch_steps(mixed, 2, "shuffled", 7), "a pass does not depend on how many follow"
    assert passes != epoch_steps(mixed, 4, "shuffled", 8)


def test_mini_batches_that_cannot_trade_rows_change_their_order(tmp_path: Path) -> None:
    """Four rows of 1, 2, 3 and 4 groups, each a mini-batch."""
    batch = read(tmp_path, tree_batch(1, [1, 2, 3, 4], steps=4))
    orders = {tuple(row for (row,) in epoch_steps(batch, 2, "shuffled", seed)[1]) for seed in range(20)}
    assert len(orders) > 10


def test_the_same_order_repeats_the_first_pass(mixed: TrainerBatch) -> None:
    assert epoch_steps(mixed, 3, "same", 7) == [mixed.steps] * 3


def test_a_batch_of_one_step_has_nothing_to_draw(tmp_path: Path) -> None:
    batch = read(tmp_path, tree_batch(1, [1, 2, 1]))
    assert epoch_steps(batch, 2, "shuffled", 7) == [[[0, 1, 2]]] * 2


def test_a_group_of_several_rows_stays_in_one_optimizer_step(tmp_path: Path) -> None:
    """Two puzzles a step; each has six completions of 20 tokens, two a row: three rows that belong together."""
    draw = np.random.default_rng(0)
    groups = [
        Group([number + 1, 5, 6], [Branch(draw.integers(VOCAB, size=20).tolist(), [-1.0] * 20, 1.0) for _ in range(6)])
        for number in range(8)
    ]
    packed, facts = pack_groups(groups, PackConfig(row_tokens=43, minibatch_size=2))
    assert (facts.split_groups, facts.rows, facts.minibatches) == (8, 24, 4)
    (tmp_path / "batch.safetensors").write_bytes(packed.to_bytes())
    batch = TrainerBatch(tmp_path / "batch.safetensors", VOCAB)
    passes = epoch_steps(batch, 3, "shuffled", 7)
    assert_fair(batch, passes)
    assert all(holds(batch, rows) == (6, 2, 12) for steps in passes for rows in steps)
    assert {tuple(rows) for rows in passes[1]} != {tuple(rows) for rows in passes[0]}
