"""Token losses of policy optimization.

Shapes: C completion tokens that take part in the loss, in any order.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stages.grpo.ratios import importance_ratio, sequence_sums

LossKind = Literal["ppo_clip", "reinforce", "cispo", "gspo", "tanh", "cross_entropy"]


@dataclass(frozen=True)
class TokenLoss:
    """Losses of C tokens and what happened to them.

    Attributes:
        loss: [C] weighted loss of each token, differentiable.
        ratio: [C] importance ratio new / old, that of the completion under `gspo`, detached.
        clipped_low: [C] bool, the clip held the ratio up; no gradient but under `cispo`.
        clipped_high: [C] bool, the clip (or dual clip) held the ratio down; no gradient but under `cispo`.
    """

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def token_loss(
    kind: LossKind,
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    sequences: Tensor,
    dual_clip: float | None = None,
    correction: Tensor | None = None,
) -> TokenLoss:
    """Computes the loss of each token.

    Args:
        kind: With rho = exp(new - old) and sg for no gradient, `ppo_clip` -min(rho A, clip(rho) A) (PPO, arXiv
            1707.06347); `gspo` the same with rho = exp(mean of new - old over the completion) (arXiv 2507.18071);
            `cispo` -sg(clip(rho)) A new (MiniMax-M1, arXiv 2506.13585); `reinforce` -rho A, the off-policy policy
            gradient without a clip; `tanh` -tanh(new - old) A (OpenPipe); `cross_entropy` -new.
        new: [C] log-probabilities under the weights being trained, differentiable.
        old: [C] log-probabilities that the ratio compares with, constant.
        advantages: [C].
        weights: [C] >= 0, multiply each token's loss.
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.
        sequences: [C] int, the completion of each token; all tokens of a completion are here.
        dual_clip: for A < 0 the loss of `ppo_clip` and `gspo` is at most -dual_clip A (arXiv 1912.09729); None = off.
        correction: [C] constant factor for the sampler-trainer gap, or None for 1.

    Returns:
        The losses with their ratios and clip marks.
    """
    log_ratio = new - old
    if kind == "gspo":
        sums, lengths = sequence_sums(log_ratio, sequences)
        log_ratio = sums / lengths
    ratio = importance_ratio(log_ratio)
    clipped = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high)
    low = high = torch.zeros_like(new, dtype=torch.bool)
    match kind:
        case "cross_entropy":
            loss = -new
        case "reinforce":
            loss = -ratio * advantages
        case "tanh":
            loss = -torch.tanh(log_ratio) * advantages
        case "cispo":
            loss = -clipped.detach() * advantages * new
            low, high = ratio < 1.0 - clip_low, ratio > 1.0 + clip_high
        case "ppo_clip" | "gspo":
            loss = -torch.minimum(ratio * advantages, clipped * advantages)
            low = (ratio < 1.0 - clip_low) & (advantages < 0)
            high = (ratio > 1.0 + clip_high) & (advantages > 0)
            if dual_clip is not None:
                dual = (ratio > dual_clip) & (advantages < 0)
                loss, high = torch.where(dual, -dual_clip * advantages, loss), high | dual
    loss = loss * weights
    if correction is not None:
        loss = loss * correction
    return TokenLoss(loss, ratio.detach(), low, high)
