"""The host waits for the card once a step: for its numbers. tests/unit/training has the same without a card."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from stages.training.step_sums import StepSums
from stages.training.worker_group.hardware import TrainHardware
from tests.support.host_waits import CASES, trainer_of

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("world_of_one"),
]


@pytest.fixture(scope="module")
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("case", CASES)
def test_only_the_numbers_of_a_step_are_waited_for(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch raises an error for any operation that waits, except inside `StepSums.reduce`."""
    hardware = TrainHardware(device="cuda", compute_dtype="bf16", micro_batch_tokens=20, compile=False)
    trainer, batch = trainer_of(case, tmp_path, torch.device("cuda"), hardware)
    trainer.step(0, batch.steps[0], 2)  # compiles, and allocates pinned memory
    reduce, waits = StepSums.reduce, list[Any]()

    def waiting(sums: StepSums, norm: Tensor) -> float:
        torch.cuda.set_sync_debug_mode("default")
        waits.append(norm)
        number = reduce(sums, norm)
        torch.cuda.set_sync_debug_mode("error")
        return number

    monkeypatch.setattr(StepSums, "reduce", waiting)
    try:
        torch.cuda.set_sync_debug_mode("error")
        trainer.step(1, batch.steps[0], 2)  # the same rows: other sizes could compile again
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1
