"""Says of a failed save that the disk is full, if it is."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from artifacts.local.full_disk import disk_full, free_bytes, is_full_disk
from stages.training.model.master_weights import TrainedWeights

BYTES_A_PARAMETER = {"fp32": 14, "bf16": 8}
"""Bytes that saving takes per parameter, by master precision: bf16 weights, master weights and AdamW's two moments."""


@contextmanager
def full_disk_reported(weights: TrainedWeights, folder: Path) -> Generator[None]:
    """Raises DiskFullError if the block, which saves results of a job below a folder, fails because of a full disk.

    Not every writer mentions a full disk, so the free space is compared with the need after a failure.

    Raises:
        DiskFullError: The disk is full.
    """
    try:
        yield
    except (OSError, RuntimeError, CheckpointException) as error:  # the last one derives from BaseException
        needed = sum(p.numel() for p in weights.masters.values()) * BYTES_A_PARAMETER[weights.master_dtype]
        if free_bytes(folder) > needed and not is_full_disk(error):
            raise
        raise disk_full(folder, needed, "weights and optimizer state") from error
