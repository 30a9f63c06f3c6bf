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
        old: [R * T] log-probabilities under the starting weights of this process's rows; not read if the old
            log-probabilities are the sampler's.
        reference: [R * T] the same under the reference.

    Attributes:
        advantages: [R * T], by address: the amount subtracted from the advantages, coefficient included.
    """

    def __init__(self, loss: LossConfig, batch: TrainerBatch, old: Tensor, reference: Tensor) -> None:
        rows, _ = batch.shape
        addresses, sequences = batch.loss_sequences(list(range(rows)))
        if loss.old_logprobs == "sampler":
            drawn = batch.values("sampler_logprobs", addresses)
        else:
            drawn = _of_all_processes(old)[addresses]
        known = _of_all_processes(reference)[addresses]
        divergences = loss.kl_coef * divergence(loss.kl_estimator, drawn, known, drawn, loss.kl_clamp)
        self._divergences, self.advantages = torch.zeros_like(reference), torch.zeros_like(reference)
        self._divergences[addresses] = divergences
        self.advantages[addresses] = kl_in_advantages(loss.kl_place, divergences, sequences, batch.groups(addresses))

    @classmethod
    def restored(cls, kept: Mapping[str, Tensor]) -> "KLReward":
        """Rebuilds the penalty from the tensors that `kept` returned."""
        reward = cls.__new__(cls)
        reward._divergences, reward.advantages = kept["kl_divergences"], kept["kl_advantages"]
        return reward

    def kept(self) -> dict[str, Tensor]:
        """Returns the tensors that `restored` needs, by name, [R * T] each."""
        return {"kl_divergences": self._divergences, "kl_advantages": self.advantages}

    def penalty(self, addresses: Tensor, sequences: Tensor) -> float:
        """Returns the mean reward that completions lost.

        Args:
            addresses: [C] addresses of all their tokens.
            sequences: [C] number of each token's completion.
        """
        return float(self._divergences[addresses].sum()) / max(1, sequences.unique().numel())


def _of_all_processes(logprobs: Tensor) -> Tensor:
    """Returns the log-probabilities of all rows from tensors that are NaN outside a process's own rows (collective)."""
    if dist.get_world_size() == 1:
        return logprobs
    together = torch.where(torch.isnan(logprobs), -torch.inf, logprobs)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return together
