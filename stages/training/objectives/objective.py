"""The interface between the step loop and the loss that it minimises: of a policy, of texts, or of values.

Shapes: R rows, T tokens of a padded row, C tokens in the loss of a micro-batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from artifacts.tensors import RIGHT
from stages.grpo.aggregation import token_shares
from stages.training.job import JobSettings, LossConfig
from stages.training.model.transfer import to_device
from stages.training.results import LossMetrics
from stages.training.trainer_batch import FlatRows, TrainerBatch

OLD, REFERENCE = "old", "reference"
"""Names of the numbers under the starting weights, and under the reference."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model for the tokens of a micro-batch.

    Attributes:
        numbers: [C] log-probabilities, or values.
        entropies: [C] of the predicting distributions; None for values.
        router: [C] the router's auxiliary loss of the token's sequence; None for values, and without experts.
    """

    numbers: Tensor
    entropies: Tensor | None = None
    router: Tensor | None = None


@dataclass(frozen=True)
class Shares:
    """The factors with which sums over the tokens of a step become its means: [C] each.

    Attributes:
        loss: Factor of the token's loss in the loss of the step (see `stages.grpo.aggregation`).
        mean: 1 / C.
        right: 1 / (tokens of right completions) for these tokens, else 0.
    """

    loss: Tensor
    mean: Tensor
    right: Tensor

    @classmethod
    def of_step(cls, batch: TrainerBatch, addresses: Tensor, sequences: Tensor, loss: LossConfig) -> "Shares":
        """Returns the shares of all tokens of a step, given their addresses and completions: [C] int64."""
        groups = batch.groups(addresses) if loss.aggregation == "group_mean" else None
        right = batch.values(RIGHT, addresses)
        return cls(
            token_shares(loss.aggregation, sequences, loss.constant_tokens, batch.mean_length, groups),
            torch.full((addresses.numel(),), 1.0 / max(1, addresses.numel())),
            right / max(1, int(right.sum())),
        )

    def at(self, index: Tensor, device: torch.device, *, counted: bool) -> "Shares":
        """Returns the shares of some tokens on a device; 0 for a process that only takes part in the collectives."""
        parts = (part[index] if counted else torch.zeros(len(index)) for part in (self.loss, self.mean, self.right))
        return Shares(*(to_device(part, device) for part in parts))


@dataclass(frozen=True)
class MicroBatch:
    """The rows of a micro-batch.

    Attributes:
        step: Number of the optimizer step, from 0.
        flat: The rows, on the host.
        addresses: [C] `flat.addresses` on the device.
        shares: Shares of the tokens in the step, on the device.
    """

    step: int
    flat: FlatRows
    addresses: Tensor
    shares: Shares


@dataclass(frozen=True)
class StepLoss:
    """The loss of a micro-batch, and the values from which the metrics of the step are computed.

    Attributes:
        total: Scalar that is minimised; the sum over micro-batches and processes is the loss of the step.
        sums: Scalars on the device, or counts, that are added up over micro-batches and processes.
        maxima: Tensors whose highest number over micro-batches and processes is kept.
    """

    total: Tensor
    sums: Mapping[str, Tensor | int]
    maxima: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class Objective(ABC):
    """What a job minimises.

    Args:
        settings: How the job trains.
        batch: The whole batch.
        device: Device of the weights.

    Attributes:
        numbers: Constants of the loss that are computed under other weights, by name: [R * T] by address, on the
            device; NaN where this process has computed none.
    """

    def __init__(self, settings: JobSettings, batch: TrainerBatch, device: torch.device) -> None:
        self.settings, self.batch, self.device = settings, batch, device
        self.numbers: dict[str, Tensor] = {}

    def unknown(self) -> Tensor:
        """Returns numbers that are not computed yet: [R * T], all NaN."""
        rows, width = self.batch.shape
        return torch.full((rows * width,), torch.nan, device=self.device)

    @property
    def old_steps(self) -> list[list[int]]:
        """Mini-batches whose numbers under the starting weights are computed before the first step."""
        return self.batch.steps if OLD in self.numbers else []

    @abstractmethod
    def settle(self, numbers: Mapping[str, Tensor]) -> None:
        """Computes, once, the other constants of the loss from the numbers of all rows: [R * T] each, on the CPU."""

    @abstractmethod
    def outputs(self, model: Any, inputs: Any) -> Outputs:
        """Runs a model."""

    @abstractmethod
    def loss(self, outputs: Outputs, micro: MicroBatch) -> StepLoss:
        """Returns the loss of a micro-batch."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, float], maxima: Mapping[str, float], rows: list[int]) -> LossMetrics:
        """Returns the metrics of a step on some rows, from what `loss` returned for its micro-batches."""
