"""The objective of a critic: half the squared distance of values from targets, which are computed once.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from stages.grpo.gae import value_targets
from stages.grpo.loss import value_loss
from stages.training.job import JobSettings, ValueJob
from stages.training.model.policy import CriticModel, ModelInputs
from stages.training.model.transfer import to_device
from stages.training.objectives.objective import OLD, MicroBatch, Objective, Outputs, StepLoss
from stages.training.results import LossMetrics
from stages.training.trainer_batch import TrainerBatch

VALUES = "values"
"""Name of the tensor [R, T] in the file of values; NaN outside the loss."""


class ValueObjective(Objective):
    """Values under the starting weights, then steps towards targets. The batch has rewards in place of advantages.

    Args:
        settings: How the job trains.
        value: Head, clip and lambda.
        batch: The whole batch.
        device: Device of the weights.
    """

    def __init__(self, settings: JobSettings, value: ValueJob, batch: TrainerBatch, device: torch.device) -> None:
        super().__init__(settings, batch, device)
        self._value = value
        self.numbers[OLD] = self.unknown()
        self._targets = self.numbers[OLD]

    def outputs(self, model: CriticModel, inputs: ModelInputs) -> Outputs:
        """Returns values, inside the bounds of a `bounded` head."""
        values, value = model(inputs), self._value
        if value.head == "bounded":
            values = value.low + (value.high - value.low) * torch.sigmoid(values)
        return Outputs(values)

    def settle(self, numbers: Mapping[str, Tensor]) -> None:
        """Computes the targets of all steps at once, because this runs on the host: [R * T] by address."""
        addresses, sequences = self.batch.loss_sequences(list(range(self.batch.shape[0])))
        rewards, values = self.batch.values("advantages", addresses), numbers[OLD][addresses]
        targets = torch.full_like(numbers[OLD], torch.nan)
        targets[addresses] = targets_of(sequences, rewards, values, self._value.lambda_)
        self._targets = to_device(targets, self.device)

    def loss(self, outputs: Outputs, micro: MicroBatch) -> StepLoss:
        """Returns the mean loss of the values."""
        old, targets = self.numbers[OLD][micro.addresses], self._targets[micro.addresses]
        loss, clipped = value_loss(outputs.numbers, old, targets, self._value.clip)
        total = (loss * micro.shares.loss).sum()
        return StepLoss(total, {"loss": total, "clipped": clipped.sum()})

    def metrics(self, sums: Mapping[str, float], maxima: Mapping[str, float], rows: list[int]) -> LossMetrics:
        """Returns the loss, and the share of the values that the clip determined."""
        return LossMetrics(loss=sums["loss"], clip_low_fraction=sums["clipped"] / max(1.0, sums["loss_tokens"]))


def targets_of(sequences: Tensor, rewards: Tensor, values: Tensor, lambda_: float) -> Tensor:
    """Returns the target of each token's value: [C] float32.

    Args:
        sequences: [C] the completion of each token; its tokens are adjacent and in order.
        rewards: [C].
        values: [C] old values.
        lambda_: Lambda of the targets.
    """
    if not sequences.numel():
        return torch.zeros(0)
    _, lengths = torch.unique_consecutive(sequences, return_counts=True)
    parts = (tensor.double().split(lengths.tolist()) for tensor in (rewards, values))
    targets = [value_targets(of_one.numpy(), old.numpy(), lambda_) for of_one, old in zip(*parts, strict=True)]
    return torch.from_numpy(np.concatenate(targets)).float()
