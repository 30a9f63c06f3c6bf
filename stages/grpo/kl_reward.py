"""A divergence from the reference that is part of the reward, as in RLHF with PPO: what it takes off the advantages.

Shapes: C tokens in the loss of a batch; those of a completion stand together and in order.
"""

from typing import Literal

import torch
from torch import Tensor

from stages.grpo.ratios import sequence_sums

Place = Literal["loss", "token_reward", "sequence_reward"]


def kl_in_advantages(place: Place, divergences: Tensor, sequences: Tensor, groups: Tensor) -> Tensor:
    """What is subtracted from each token's advantage, before the coefficient.

    A reward less the divergence at each token (Ziegler et al., arXiv 1909.08593; Ouyang et al., arXiv 2203.02155) has
    one of these advantages beside that of the outcome:
    `token_reward`: the divergence of the token and of all behind it in its completion, undiscounted and without a
    baseline (the return of OpenRLHF's group_norm and of REINFORCE++, arXiv 2501.03262; STILL-3).
    `sequence_reward`: the divergence of the whole completion less the mean of its group's completions (T1, arXiv
    2501.11651), which is what a reward less that sum has, where advantages are not divided by a deviation.
    Either way advantages are first divided by the deviation of the rewards without it, as OpenRLHF does, and a group
    whose rewards are uniform without it is in the batch only where `pack.uniform_groups` is `kept`.

    Args:
        place: Where the divergence goes; nothing is subtracted for `loss`.
        divergences: [C], constant.
        sequences: [C] int, the completion of each token.
        groups: [C] int, shared by the completions of one prompt.

    Returns:
        [C].
    """
    if place == "loss":
        return torch.zeros_like(divergences)
    exact = divergences.double()
    totals, lengths = sequence_sums(exact, sequences)
    if place == "token_reward":
        before = torch.cumsum(exact, 0) - exact
        starts = torch.ones_like(sequences, dtype=torch.bool)
        starts[1:] = sequences[1:] != sequences[:-1]
        run = torch.cumsum(starts, 0) - 1
        return (totals - (before - before[starts][run])).to(divergences.dtype)
    of_group, _ = sequence_sums(totals / lengths, groups)
    completions, _ = sequence_sums(1.0 / lengths.double(), groups)
    return (totals - of_group / completions).to(divergences.dtype)
