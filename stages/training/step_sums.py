"""Sums and maxima of one optimizer step, over its micro-batches and then over processes.

They stay on the device until `reduce`, because each number that the host reads makes it wait for the device.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from stages.training.objectives.objective import StepLoss


class StepSums:
    """Accumulates what an objective returns for the micro-batches of an optimizer step.

    Args:
        device: Device of the losses.
        own_names: Whether a user's loss chooses names of sums, so that those of other processes may differ.

    Attributes:
        sums: Sums over all processes by name, after `reduce`.
        maxima: Maxima by name, at least 0, without numbers that are NaN.
    """

    def __init__(self, device: torch.device, *, own_names: bool = False) -> None:
        self._device, self._own_names = device, own_names
        self._sums: dict[str, list[Tensor]] = {}
        self._counts: dict[str, int] = {}
        self._maxima: dict[str, list[Tensor]] = {}
        self.sums: dict[str, float] = {}
        self.maxima: dict[str, float] = {}

    def add(self, loss: StepLoss, *, counted: bool, **counts: int) -> None:
        """Adds a micro-batch.

        Args:
            loss: What the objective returned for it.
            counted: Whether it counts; a process that only takes part in the collectives has the same names and adds
                nothing.
            **counts: Further counts.
        """
        for name, share in {**loss.sums, **counts}.items():
            if isinstance(share, Tensor):
                self._sums.setdefault(name, []).extend([share.detach()] if counted else [])
            else:
                self._counts[name] = self._counts.get(name, 0) + share * counted
        for name, values in loss.maxima.items():
            highest = self._maxima.setdefault(name, [])
            if counted and values.numel():
                highest.append(values.detach().max())

    def reduce(self, norm: Tensor) -> float:
        """Combines the sums and maxima of all processes, and brings all numbers of the step to the host (collective).

        In a step, only this makes the host wait until a GPU has computed everything.

        Args:
            norm: Scalar, the norm of the gradient, which the host reads with the rest.

        Returns:
            The norm.
        """
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        names = self._names()
        totals = [torch.stack([zero, *(x.double() for x in self._sums.get(name, []))]).sum() for name in names]
        totals += [torch.full_like(zero, count) for count in self._counts.values()]
        highest = [torch.stack([zero, *(x.double() for x in values)]) for values in self._maxima.values()]
        sums = torch.stack(totals)
        maxima = torch.stack([zero, *(torch.where(values.isnan(), 0.0, values).max() for values in highest)])
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        norm = norm.to(self._device, torch.float64, non_blocking=True)
        numbers: list[float] = torch.cat([sums, maxima[1:], norm.view(1)]).cpu().tolist()
        names += self._counts
        self.sums = dict(zip(names, numbers[: len(names)], strict=True))
        self.maxima = dict(zip(self._maxima, numbers[len(names) : -1], strict=True))
        return numbers[-1]

    def _names(self) -> list[str]:
        """Returns the names of the sums on the device, which are the same on all processes (collective)."""
        if not self._own_names or dist.get_world_size() == 1:
            return list(self._sums)
        names: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(names, list(self._sums))
        return sorted({name for some in names for name in some})
