"""The rows that a process computes, in micro-batches, and numbers of their tokens that are kept by address.

Shapes: R rows, T tokens of a padded row, C tokens in the loss of a micro-batch.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from stages.training.model.transfer import Pace, to_device
from stages.training.trainer_batch import FlatRows, TrainerBatch, micro_batches
from stages.training.worker_group.hardware import TrainHardware


class RowWork:
    """The part of a batch that this process computes.

    Args:
        batch: The whole batch.
        hardware: Size of micro-batches, and how processes share rows.
        device: Device of the model.
        heartbeat: Called after each micro-batch to report progress.

    Attributes:
        share: The share of a step's rows that this process computes.
    """

    def __init__(
        self, batch: TrainerBatch, hardware: TrainHardware, device: torch.device, heartbeat: Callable[[], None]
    ) -> None:
        self._batch, self._limit, self._device, self._heartbeat = batch, hardware.micro_batch_tokens, device, heartbeat
        self.share = hardware.row_share(dist.get_rank(), dist.get_world_size())

    def of(self, rows: list[int]) -> Iterator[tuple[FlatRows, bool]]:
        """Yields the micro-batches of a mini-batch that this process computes, and whether each counts.

        One that does not count lets a process with fewer rows than others take part in the collectives.
        The host prepares micro-batches while a GPU computes earlier ones.
        """
        pace = Pace(self._device)
        for micro in self._own(rows):
            yield self._batch.flat(micro or rows[:1]), bool(micro)
            pace.keep()
            self._heartbeat()

    def _own(self, rows: list[int]) -> list[list[int]]:
        return micro_batches(rows, self._batch.row_tokens, self.share.count, self._limit)[self.share.number]

    def fill(self, numbers: Tensor, steps: list[list[int]], forward: Callable[[FlatRows], Tensor]) -> None:
        """Sets the numbers of some mini-batches' tokens (collective).

        Args:
            numbers: [R * T] by address, changed in place.
            steps: Rows of each mini-batch.
            forward: Returns the numbers of a micro-batch, [C], on the device.
        """
        with torch.no_grad():
            for rows in steps:
                for flat, _ in self.of(rows):
                    numbers.index_copy_(0, to_device(flat.addresses, numbers.device), forward(flat))

    def merged(self, numbers: Tensor) -> Tensor:
        """Returns the numbers that all processes have computed, [R * T] on the CPU, NaN where unknown (collective)."""
        rows, width = self._batch.shape
        # A process without rows computed those of another one, so a row counts only for the process that it belongs to.
        own = torch.zeros(rows, dtype=torch.bool)
        for step in self._batch.steps:
            for micro in self._own(step):
                own[micro] = True
        mine = numbers.cpu()
        merged = torch.where(own.repeat_interleave(width) & mine.isfinite(), mine, -torch.inf)
        dist.all_reduce(merged, op=dist.ReduceOp.MAX)
        return merged.masked_fill_(merged == -torch.inf, torch.nan)
