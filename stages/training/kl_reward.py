"""The divergence from the reference as part of the reward of a batch, equal on every process.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from stages.grpo.divergence import divergence
from stages.grpo.kl_reward import kl_in_advantages
from stages.training.job import LossConfig
from stages.training.trainer_batch import TrainerBatch


class KLReward:
    """The penalty on advantages for the divergence under the old log-probabilities, fixed before the first step.

    Args:
        loss: Coefficient, estimator and place of the divergence.
        batch: The whole batch.
        old: [R * T] log-probabilities of this process's rows under the starting weights; not read if the old
            log-probabilities are the sampler's.
        reference: [R * T] log-probabilities of this process's rows under the reference.

    Attributes:
        penalties: [R * T], by address: subtracted from the advantages; the coefficient is included.
    """

    def __init__(self, loss: LossConfig, batch: TrainerBatch, old: Tensor, reference: Tensor) -> None:
        rows, _ = batch.shape
        addresses, sequences = batch.loss_sequences(list(range(rows)))
        if loss.old_logprobs == "sampler":
            old_logprobs = batch.values("sampler_logprobs", addresses)
        else:
            old_logprobs = _of_all_processes(old)[addresses]
        reference_logprobs = _of_all_processes(reference)[addresses]
        estimates = divergence(loss.kl_estimator, old_logprobs, reference_logprobs, old_logprobs, loss.kl_clamp)
        divergences = loss.kl_coef * estimates
        self._divergences, self.penalties = torch.zeros_like(reference), torch.zeros_like(reference)
        self._divergences[addresses] = divergences
        self.penalties[addresses] = kl_in_advantages(loss.kl_place, divergences, sequences, batch.groups(addresses))

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor]) -> "KLReward":
        """Rebuilds the penalty from the tensors that `tensors` returned."""
        reward = cls.__new__(cls)
        reward._divergences, reward.penalties = tensors["kl_divergences"], tensors["kl_advantages"]
        return reward

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that `restored` needs, by name, [R * T] each."""
        return {"kl_divergences": self._divergences, "kl_advantages": self.penalties}

    def penalty(self, addresses: Tensor, sequences: Tensor) -> float:
        """Returns the mean reward that completions lost.

        Args:
            addresses: [C] addresses of the completions' tokens.
            sequences: [C] number of each token's completion.
        """
        return float(self._divergences[addresses].sum()) / max(1, sequences.unique().numel())


def _of_all_processes(logprobs: Tensor) -> Tensor:
    """Returns the log-probabilities of all rows; each process passes its own rows, with NaN elsewhere (collective)."""
    if dist.get_world_size() == 1:
        return logprobs
    merged = torch.where(torch.isnan(logprobs), -torch.inf, logprobs)
    dist.all_reduce(merged, op=dist.ReduceOp.MAX)
    return merged
