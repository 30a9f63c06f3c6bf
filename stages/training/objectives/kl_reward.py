"""The divergence from the reference as part of the reward of a batch, equal on every process.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

import torch
from torch import Tensor

from stages.grpo.kl import divergence
from stages.grpo.kl_reward import kl_in_advantages
from stages.training.job import LossConfig
from stages.training.trainer_batch import TrainerBatch


class KLReward:
    """The penalty on advantages for the divergence under the old log-probabilities, fixed before the first step.

    Args:
        loss: Coefficient, estimator and place of the divergence.
        batch: The whole batch.
        old: [R * T] log-probabilities of all rows under the starting weights; None if they are the sampler's.
        reference: [R * T] log-probabilities of all rows under the reference.

    Attributes:
        penalties: [R * T], by address: subtracted from the advantages; the coefficient is included.
    """

    def __init__(self, loss: LossConfig, batch: TrainerBatch, old: Tensor | None, reference: Tensor) -> None:
        addresses, sequences = batch.loss_sequences(list(range(batch.shape[0])))
        old_logprobs = batch.values("sampler_logprobs", addresses) if old is None else old[addresses]
        estimates = divergence(loss.kl_estimator, old_logprobs, reference[addresses], old_logprobs, loss.kl_clamp)
        divergences = loss.kl_coef * estimates
        self._divergences, self.penalties = torch.zeros_like(reference), torch.zeros_like(reference)
        self._divergences[addresses] = divergences
        self.penalties[addresses] = kl_in_advantages(loss.kl_place, divergences, sequences, batch.groups(addresses))

    def penalty(self, addresses: Tensor, sequences: Tensor) -> float:
        """Returns the mean reward that completions lost.

        Args:
            addresses: [C] addresses of the completions' tokens.
            sequences: [C] number of each token's completion.
        """
        return float(self._divergences[addresses].sum()) / max(1, sequences.unique().numel())
