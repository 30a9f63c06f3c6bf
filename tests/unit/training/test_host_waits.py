"""The host never waits for a GPU inside a step, except once for the step's numbers.

The step runs on torch's meta device, which stands for a GPU: a tensor there has no data, so each value that the host
would have to wait for shows. `tests/gpu/test_host_waits.py` is the same step on a card.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stages.training.model import attention
from stages.training.worker_group.hardware import TrainHardware
from tests.support.host_waits import CASES, trainer_of

pytestmark = pytest.mark.usefixtures("world_of_one")

META = torch.device("meta")
aten = torch.ops.aten
SIZE_OF_VALUES = {aten.nonzero, aten.masked_select, aten._unique2, aten.unique_consecutive, aten.unique_dim}
"""Operations on which the host waits because the size of their result depends on values."""


class HostWaits(TorchDispatchMode):
    """Lists the operations of which the host has to wait for the device; a value that it reads is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.copies: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_device = any(x.is_meta for x in tensors)
        operation = func.overloadpacket
        if operation is aten._fused_adamw_ and on_device:
            return None  # the meta device has no such kernel; it works in place
        if operation is aten._local_scalar_dense and on_device:
            self.reads.append(str(func))
            return args[0].new_ones((), device="cpu").item()
        if operation in SIZE_OF_VALUES and on_device:
            self.reads.append(str(func))
            return func(*(torch.ones_like(x, device="cpu") if isinstance(x, Tensor) else x for x in args), **kwargs)
        if operation is aten._to_copy and on_device and torch.device(kwargs.get("device") or META) != META:
            self.reads.append(str(func))
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if operation is aten._to_copy and not on_device and torch.device(kwargs.get("device") or "cpu") == META:
            self.copies += [] if kwargs.get("non_blocking") else [str(func)]
        if operation is aten.copy_ and args[0].is_meta != args[1].is_meta:
            self.copies += [] if kwargs.get("non_blocking", args[2:] == (True,)) else [str(func)]
        return func(*args, **kwargs)


def attend(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, scale: float, enable_gqa: bool) -> Tensor:
    """Attention without its mask: on a card it is one kernel of torch, which the meta device lacks."""
    return functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=enable_gqa)


@pytest.mark.parametrize("case", CASES)
def test_the_host_waits_once_a_step(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adam = import_module("torch.optim.adam")  # torch.optim hides it
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *p, **k: None)
    monkeypatch.setattr(attention, "_flex", lambda: attend)
    with HostWaits() as before:
        trainer, batch = trainer_of(case, tmp_path, META, TrainHardware(compute_dtype="bf16", micro_batch_tokens=20))
    assert not before.copies
    for number, rows in enumerate(batch.steps):
        with HostWaits() as waits:
            metrics = trainer.step(number, rows, len(batch.steps))
        assert len(rows) == 2 and metrics.grad_norm == 1.0, "two micro-batches; a number that is read is 1"
        assert (len(waits.reads), len(waits.copies)) == (1, 0), waits.reads + waits.copies
