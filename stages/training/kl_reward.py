"""The divergence from the reference as part of the reward of a batch, on every process alike.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from stages.grpo.divergence import divergence
from stages.grpo.kl_reward import kl_in_advantages
from stages.training.job import LossConfig
from stages.training.packed import PackedBatch


class KLReward:
    """What the divergence under the old log-probabilities takes off advantages, fixed before the first step.

    Args:
        loss: Coefficient, estimator and place.
        batch: The whole batch.
        old: [R * T] log-probabilities under the starting weights of this process's rows; not read where the old ones
            are the sampler's.
        reference: [R * T] the same under the reference.

    Attributes:
        advantages: [R * T], by address: what is subtracted, coefficient included.
    """

    def __init__(self, loss: LossConfig, batch: PackedBatch, old: Tensor, reference: Tensor) -> None:
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
        """The same again from what `kept` gave."""
        reward = cls.__new__(cls)
        reward._divergences, reward.advantages = kept["kl_divergences"], kept["kl_advantages"]
        return reward

    def kept(self) -> dict[str, Tensor]:
        """What it consists of, by name, [R * T] each."""
        return {"kl_divergences": self._divergences, "kl_advantages": self.advantages}

    def penalty(self, addresses: Tensor, sequences: Tensor) -> float:
        """Mean reward that some completions lost, given the addresses and completions of all their tokens."""
        return float(self._divergences[addresses].sum()) / max(1, sequences.unique().numel())


def _of_all_processes(logprobs: Tensor) -> Tensor:
    """Each process has those of its own rows and NaN elsewhere; afterwards all have all (collective)."""
    if dist.get_world_size() == 1:
        return logprobs
    together = torch.where(torch.isnan(logprobs), -torch.inf, logprobs)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return together
