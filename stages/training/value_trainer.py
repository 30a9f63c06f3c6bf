"""The job of a value model on one worker process: values under the starting weights, then steps towards targets.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from stages.grpo.gae import value_targets
from stages.grpo.loss import TokenLoss, value_loss
from stages.training.job import ValueJob
from stages.training.model.policy import Policy
from stages.training.model.transfer import to_device
from stages.training.trainer import MicroBatchLoss, Trainer
from stages.training.trainer_batch import FlatRows

VALUES = "values"
"""Name of the tensor [R, T] in the file of values; NaN outside the loss."""


class ValueTrainer(Trainer):
    """Runs the optimizer steps of a value model. The batch has rewards where a policy's batch has advantages.

    Old values stand in the place of old log-probabilities, also in step checkpoints.
    """

    @property
    def _value(self) -> ValueJob:
        assert self._job.value is not None
        return self._job.value

    def _forward(self, flat: FlatRows, policy: Policy) -> tuple[Tensor, Tensor]:
        values, nothing = super()._forward(flat, policy)
        if self._value.head == "bounded":
            values = self._value.low + (self._value.high - self._value.low) * torch.sigmoid(values)
        return values, nothing

    def recompute_old_logprobs(self) -> None:
        """Computes the values under the starting weights for every mini-batch, and the targets (collective)."""
        self._fill_logprobs(self._weights.policy, self._batch.steps, self._old)
        self._set_targets()

    def restore_logprobs(self, logprobs: dict[str, Tensor], where: str) -> None:
        """Sets the values under the starting weights, and the targets."""
        super().restore_logprobs(logprobs, where)
        self._set_targets()

    def _set_targets(self) -> None:
        """Computes the targets once for all steps, because it happens on the host: [R * T] by address."""
        rows, width = self._batch.shape
        addresses, sequences = self._batch.loss_sequences(list(range(rows)))
        rewards, values = self._batch.values("advantages", addresses), self._old.cpu()[addresses]
        targets = torch.full((rows * width,), torch.nan)
        targets[addresses] = targets_of(sequences, rewards, values, self._value.lambda_)
        self._targets = to_device(targets, self._weights.device)

    def write_values(self) -> None:
        """Writes the values under the starting weights, if the job names a file (collective; the first writes)."""
        if self._job.out_values_file is None:
            return
        values = self.kept_logprobs()["old"].view(self._batch.shape)
        if dist.get_rank() == 0:
            save_file({VALUES: values.contiguous()}, self._job.out_values_file)

    def _loss(
        self, number: int, flat: FlatRows, factor: Tensor, entropy_factor: Tensor, right_factor: Tensor
    ) -> MicroBatchLoss:
        new, nothing = self._forward(flat, self._weights.policy)
        addresses = to_device(flat.addresses, new.device)
        loss, clipped = value_loss(new, self._old[addresses], self._targets[addresses], self._value.clip)
        total = (loss * to_device(flat.weights, new.device) * factor).sum()
        token = TokenLoss(loss.detach(), torch.ones_like(new), clipped, torch.zeros_like(clipped))
        return MicroBatchLoss(total, total, None, token, nothing, None)


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
