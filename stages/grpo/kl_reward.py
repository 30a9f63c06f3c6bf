"""The effect on the advantages of a KL divergence that is part of the reward, as in RLHF with PPO.

Shapes: C tokens in the loss of a batch; those of a completion are adjacent and in order.
"""

import torch
from torch import Tensor

from stages.grpo.names import KLPlace
from stages.grpo.ratios import sequence_sums


def kl_in_advantages(place: KLPlace, divergences: Tensor, sequences: Tensor, groups: Tensor) -> Tensor:
    """Returns the penalty that is subtracted from each token's advantage.

    The reward of a token is reduced by its divergence (Ziegler et al., arXiv 1909.08593; Ouyang et al., arXiv
    2203.02155). The advantage is reduced in one of two ways:

    `token_reward`: by the divergences of the token and of all later tokens of its completion, undiscounted and without
    a baseline (the return of OpenRLHF's group_norm and of REINFORCE++, arXiv 2501.03262; STILL-3).

    `sequence_reward`: by the sum of the completion's divergences minus the mean of these sums over its group (T1, arXiv
    2501.11651). If the baseline is the group's mean and nothing is divided by a deviation, this is the advantage of
    a reward minus that sum.

    In both cases advantages are divided by the deviation of the rewards without the penalty, as in OpenRLHF. A group
    whose rewards are uniform without the penalty is in the batch only if `pack.uniform_groups` is `kept`.

    Args:
        place: Place of the divergence; the penalty is 0 for `loss`.
        divergences: [C] divergence at each token times the KL coefficient, constant.
        sequences: [C] int, the completion of each token.
        groups: [C] int, the group of each token's completion.

    Returns:
        [C], of the type of `divergences`.
    """
    if place == "loss":
        return torch.zeros_like(divergences)
    exact = divergences.double()
    totals, lengths = sequence_sums(exact, sequences)
    if place == "token_reward":
        before = torch.cumsum(exact, 0) - exact
        starts = torch.ones_like(sequences, dtype=torch.bool)
        starts[1:] = sequences[1:] != sequences[:-1]
        completion = torch.cumsum(starts, 0) - 1
        return (totals - (before - before[starts][completion])).to(divergences.dtype)
    group_totals, _ = sequence_sums(totals / lengths, groups)
    group_sizes, _ = sequence_sums(1.0 / lengths.double(), groups)
    return (totals - group_totals / group_sizes).to(divergences.dtype)
