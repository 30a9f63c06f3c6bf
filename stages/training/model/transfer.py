"""Asynchronous copies to a GPU, and a bound on how far the host runs ahead."""

from collections import deque

import torch
from torch import Tensor

AHEAD = 2
"""Micro-batches that may be queued on a GPU. With one, it would be idle while the host prepares the next."""


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Returns a tensor of the host on a device. The copy to a GPU starts from pinned memory, so the host goes on.

    Args:
        tensor: On the CPU; must not be changed afterwards.
        device: Device of the result.
        dtype: Type of the result; None: that of the tensor. It is cast on the host, into what is copied.
    """
    tensor = tensor if dtype is None else tensor.to(dtype)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Pace:
    """Lets the host prepare micro-batches while a GPU computes earlier ones, but no more than `AHEAD`.

    Without the bound, all micro-batches of a step would be queued at once, and a process would report no progress while
    it waits for the numbers of a long step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: deque[torch.cuda.Event] = deque()

    def keep(self) -> None:
        """Marks the end of a micro-batch, and waits for the one that was queued `AHEAD` before it."""
        if self._device.type == "cuda":
            mark = torch.cuda.Event()
            mark.record()
            self._marks.append(mark)
            if len(self._marks) > AHEAD:
                self._marks.popleft().synchronize()
