"""Token losses of policy optimization.

Shapes: C completion tokens that take part in the loss, in any order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.grpo.names import LossKind
from stages.grpo.ratios import importance_ratio, sequence_sums


@dataclass(frozen=True)
class TokenLoss:
    """Losses and importance ratios of C tokens.

    Attributes:
        loss: [C] loss of each token, differentiable.
        ratio: [C] importance ratio new / old, detached; the completion's ratio for `gspo`.
        clipped_low: [C] bool, whether the clip raised the ratio, or masked it. Clipped tokens have a gradient only
            under `cispo`.
        clipped_high: [C] bool, whether the clip or the dual clip lowered the ratio.
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
    *,
    clip_low: float,
    clip_high: float,
    sequences: Tensor,
    dual_clip: float | None = None,
    correction: Tensor | None = None,
) -> TokenLoss:
    """Returns the loss of each token.

    Args:
        kind: Name of the loss. With rho = exp(new - old), A the advantage and sg(x) for x without a gradient:
            `ppo_clip` -min(rho A, clip(rho) A) (PPO, arXiv 1707.06347);
            `gspo` the same with rho = exp(mean of new - old over the completion) (arXiv 2507.18071);
            `cispo` -sg(clip(rho)) A new (MiniMax-M1, arXiv 2506.13585);
            `reinforce` -rho A, the off-policy policy gradient without a clip;
            `masked` -rho A if the clip leaves rho as it is, else 0 (SAO, arXiv 2607.07508);
            `tanh` -tanh(new - old) A (OpenPipe);
            `cross_entropy` -new.
        new: [C] log-probabilities under the weights being trained, differentiable.
        old: [C] log-probabilities in the denominator of the ratio, constant.
        advantages: [C].
        clip_low: The ratio is clipped below 1 - clip_low.
        clip_high: The ratio is clipped above 1 + clip_high.
        sequences: [C] int, the completion of each token; all tokens of a completion are included.
        dual_clip: For A < 0 the loss of `ppo_clip` and `gspo` is at most -dual_clip A (arXiv 1912.09729); None for no
            such bound.
        correction: [C] constant factor for the sampler-trainer gap, or None for 1.
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
        case "masked":
            low, high = ratio < 1.0 - clip_low, ratio > 1.0 + clip_high
            loss = torch.where(low | high, 0.0, -ratio * advantages)
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
    if correction is not None:
        loss = loss * correction
    return TokenLoss(loss, ratio.detach(), low, high)


def value_loss(new: Tensor, old: Tensor, targets: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Returns the loss of each token's value, [C], and whether the clip determines it, [C] bool.

    The loss is half the squared distance of the value from its target, or that of the value clipped to old +- clip,
    whichever is larger (as in OpenAI's baselines).

    Args:
        new: [C] values under the weights being trained, differentiable.
        old: [C] values under the starting weights, constant.
        targets: [C].
        clip: Largest distance from the old value; None for no clip.
    """
    plain = (new - targets).square()
    if clip is None:
        return 0.5 * plain, torch.zeros_like(new, dtype=torch.bool)
    clipped = (old + (new - old).clamp(-clip, clip) - targets).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain
