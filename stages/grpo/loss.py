"""Token losses of policy optimization, and what their sum is divided by.

Shapes: C completion tokens that take part in the loss, in any order; S completions.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within this before exp, so that one broken token cannot make the loss infinite."""


@dataclass(frozen=True)
class TokenLoss:
    """Losses of C tokens and what happened to them.

    Attributes:
        loss: [C] weighted loss of each token, differentiable.
        ratio: [C] importance ratio new / old, detached.
        clipped_low: [C] bool, the clip held the ratio up (A < 0), no gradient.
        clipped_high: [C] bool, the clip held the ratio down (A > 0), no gradient.
    """

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def token_loss(
    kind: Literal["ppo_clip", "reinforce", "cross_entropy"],
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    correction: Tensor | None = None,
) -> TokenLoss:
    """Computes the loss of each token.

    Args:
        kind: `ppo_clip` -min(rho A, clip(rho) A), `reinforce` -rho A, `cross_entropy` -new.
        new: [C] log-probabilities under the weights being trained, differentiable.
        old: [C] log-probabilities that the ratio compares with, constant.
        advantages: [C].
        weights: [C] >= 0, multiply each token's loss.
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
        correction: [C] constant factor for the sampler-trainer gap, or None for 1.

    Returns:
        The losses with their ratios and clip marks.
    """
    ratio = torch.exp(torch.clamp(new - old, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    low = torch.zeros_like(new, dtype=torch.bool)
    high = low
    if kind == "cross_entropy":
        loss = -new
    elif kind == "reinforce":
        loss = -ratio * advantages
    else:
        free = ratio * advantages
        held = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages
        loss = -torch.minimum(free, held)
        low = (ratio.detach() < 1.0 - clip_low) & (advantages < 0)
        high = (ratio.detach() > 1.0 + clip_high) & (advantages > 0)
    loss = loss * weights
    if correction is not None:
        loss = loss * correction
    return TokenLoss(loss, ratio.detach(), low, high)


def truncated_importance(old: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """Importance of trainer over sampler per token, min(exp(old - sampler), cap): [C]."""
    return torch.exp(torch.clamp(old - sampler, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).clamp(max=cap)


def token_shares(
    aggregation: Literal["token_mean", "sequence_mean", "constant"],
    sequence_of_token: Tensor,
    constant_tokens: int | None = None,
) -> Tensor:
    """What each token's loss is multiplied by so that the plain sum is the aggregated loss of an optimizer step.

    The shares are taken over all tokens of the step, wherever they are computed: that is what makes the loss
    independent of micro-batches, packing and the number of processes.

    Args:
        aggregation: `token_mean` 1 / C; `sequence_mean` 1 / (S * tokens of the token's completion);
            `constant` 1 / (S * constant_tokens).
        sequence_of_token: [C] int, the completion each token of the step belongs to.
        constant_tokens: the length of `constant`.

    Returns:
        [C] float32.
    """
    if sequence_of_token.numel() == 0:
        return torch.zeros(0)
    _, inverse, lengths = torch.unique(sequence_of_token, return_inverse=True, return_counts=True)
    tokens, sequences = sequence_of_token.numel(), lengths.numel()
    if aggregation == "token_mean":
        return torch.full((tokens,), 1.0 / tokens)
    if aggregation == "sequence_mean":
        return 1.0 / (sequences * lengths[inverse].to(torch.float32))
    if constant_tokens is None:
        raise ValueError("aggregation 'constant' needs constant_tokens")
    return torch.full((tokens,), 1.0 / (sequences * constant_tokens))
