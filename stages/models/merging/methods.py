"""Methods that merge tensors of one shape. All compute in float32; sums are taken in the order of the models.

Sources: Arcee Fusion: the merge method `arcee_fusion` of mergekit 0.1.5, which the TinyR1 paper used (arXiv
2503.04872). Task arithmetic: arXiv 2212.04089. TIES: arXiv 2306.01708. The tests compare each with mergekit bit by bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST_PROBABILITY = 1e-8


@dataclass(frozen=True)
class Fused:
    """The result of a fusion.

    Attributes:
        tensor: The merged tensor, float32.
        threshold: Smallest importance of an element that is taken from the model.
        kl: Mean over the rows of KL(model || base) between the softmax distributions of a row, in nats.
        taken: Share of elements that are taken from the model.
    """

    tensor: Tensor
    threshold: float
    kl: float
    taken: float


def arcee_fusion(base: Tensor, model: Tensor) -> Fused:
    """Returns the base with the important elements of another model.

    The importance of an element is its absolute difference times the divergence KL(model || base) between the softmax
    distributions of its row. An element is taken if its importance is at least median + 1.5 (q75 - q25) of all
    importances; a quantile is an element of the sorted tensor. If three quarters of the importances are 0, this
    threshold is 0, and all elements are taken.

    Quantiles are exact; mergekit estimates those of tensors with more than a million elements from random samples.

    Args:
        base: Float tensor; its last dimension is a row, and a vector is one row.
        model: Float tensor of the same shape.
    """
    base, model = base.float(), model.float()
    probabilities = torch.softmax(model, dim=-1) + _SMALLEST_PROBABILITY
    base_probabilities = torch.softmax(base, dim=-1) + _SMALLEST_PROBABILITY
    kl = torch.sum(probabilities * torch.log(probabilities / base_probabilities), dim=-1)
    importance = (model - base).abs() * kl.unsqueeze(-1)
    threshold = _threshold(importance)
    taken = (importance >= threshold).float()
    fused = base + (model - base) * taken
    return Fused(fused, float(threshold), float(kl.mean()), float(taken.double().mean()))


def _threshold(importance: Tensor) -> Tensor:
    flat, last = importance.flatten(), importance.numel() - 1
    low, middle, high = (torch.kthvalue(flat, 1 + index).values for index in (last // 4, last // 2, 3 * last // 4))
    return middle + 1.5 * (high - low)


def average(models: Sequence[Tensor]) -> Tensor:
    """Returns the mean of tensors of one shape."""
    return torch.stack([model.float() for model in models]).sum(dim=0) / len(models)


def task_arithmetic(base: Tensor, models: Sequence[Tensor], weight: float) -> Tensor:
    """Returns the base plus `weight` times the sum of the models' differences from it."""
    base = base.float()
    return base + (torch.stack([model.float() - base for model in models]) * weight).sum(dim=0)


def ties(base: Tensor, models: Sequence[Tensor], weight: float, density: float) -> Tensor:
    """Returns the base plus `weight` times the mean of the large differences that agree in sign.

    Each difference keeps the share `density` of its elements: the largest in magnitude, at least one, and the first of
    equal ones. The sign of an element is that of the sum of the kept differences; it is positive if the sum is 0. The
    mean is over the models whose kept difference has that sign; it is 0 if there is none.
    """
    base = base.float()
    kept = torch.stack([_largest(model.float() - base, density) for model in models])
    sign = (kept.sum(dim=0) >= 0).float() * 2 - 1
    agrees = kept.sign() == sign
    mean = (kept * agrees).sum(dim=0) / agrees.sum(dim=0).clamp(min=1)
    return base + (mean if weight == 1 else mean * weight)


def _largest(difference: Tensor, density: float) -> Tensor:
    if density >= 1:
        return difference
    flat = difference.flatten()
    order = torch.argsort(flat.abs(), descending=True, stable=True)[: max(1, int(density * flat.numel()))]
    kept = torch.zeros_like(flat)
    kept[order] = 1
    return (flat * kept).view_as(difference)
