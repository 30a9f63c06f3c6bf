"""The mini-batches of each pass over a batch.

The first pass uses the mini-batches as they were packed. With `shuffled` each later pass draws new ones: rows change
places with rows of other mini-batches, and the order of the mini-batches changes. An optimizer step keeps the number of
samples that the recipe sets (`pack.minibatch_size` puzzles, completions or rows): rows of a mini-batch that share a
group move together, and only change places with the same number of rows, groups and completions. TRL, torchtune and
verl (with `shuffle`) also draw the samples of each epoch again; they count samples instead of packed rows, so they do
not need units.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce

from stages.training.job import EpochOrder
from stages.training.trainer_batch import TrainerBatch


@dataclass(frozen=True)
class Unit:
    """Rows of a mini-batch that share groups, usually a single row, and the groups and completions in them."""

    rows: set[int] = field(default_factory=set[int])
    groups: set[int] = field(default_factory=set[int])
    completions: set[int] = field(default_factory=set[int])

    @property
    def size(self) -> tuple[int, int, int]:
        """The numbers of rows, groups and completions. Units of equal size may change places."""
        return len(self.rows), len(self.groups), len(self.completions)

    def joined(self, other: "Unit") -> "Unit":
        """Returns the union of both units."""
        return Unit(self.rows | other.rows, self.groups | other.groups, self.completions | other.completions)


def epoch_steps(batch: TrainerBatch, epochs: int, order: EpochOrder, seed: int) -> list[list[list[int]]]:
    """Returns the rows of each mini-batch of each pass, the same on every process.

    Args:
        batch: The batch as packed.
        epochs: Number of passes.
        order: `same` repeats the first pass.
        seed: Determines the later passes, together with the number of the pass.

    Returns:
        By pass and mini-batch, rows in ascending order. Each pass contains every row once.
    """
    if epochs == 1 or order == "same" or len(batch.steps) == 1:
        return [batch.steps] * epochs
    unit_of_row = _single_rows(batch)
    units = [_joined([unit_of_row[row] for row in rows]) for rows in batch.steps]
    return [batch.steps, *(_shuffled(units, random.Random(f"{seed} {epoch}")) for epoch in range(1, epochs))]


def _shuffled(steps: list[list[Unit]], rng: random.Random) -> list[list[int]]:
    """Returns the rows of each mini-batch after units of equal size and then whole mini-batches changed places."""
    by_size: defaultdict[tuple[int, int, int], list[Unit]] = defaultdict(list)
    for units in steps:
        for unit in units:
            by_size[unit.size].append(unit)
    for units in by_size.values():
        rng.shuffle(units)
    shuffled = [sorted(row for unit in units for row in by_size[unit.size].pop().rows) for units in steps]
    rng.shuffle(shuffled)
    return shuffled


def _single_rows(batch: TrainerBatch) -> list[Unit]:
    """Returns each row of a batch as a unit, with its groups and completions that are in the loss."""
    rows, width = batch.shape
    units = [Unit({row}) for row in range(rows)]
    addresses, completions = batch.loss_sequences(list(range(rows)))
    tokens = zip(addresses.tolist(), batch.groups(addresses).tolist(), completions.tolist(), strict=True)
    for address, group, completion in tokens:
        units[address // width].groups.add(group)
        units[address // width].completions.add(completion)
    return units


def _joined(rows: list[Unit]) -> list[Unit]:
    """Returns the units of a mini-batch: rows that share a group are joined."""
    units: list[Unit] = []
    for row in rows:
        sharing = [unit for unit in units if unit.groups & row.groups]
        apart = [unit for unit in units if not unit.groups & row.groups]
        units = [*apart, reduce(Unit.joined, sharing, row)]
    return units
