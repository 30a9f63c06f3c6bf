"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

Shapes: C tokens, in any order.
"""

from typing import Literal

import torch
from torch import Tensor

from stages.grpo.ratios import LOG_RATIO_LIMIT, importance_ratio

Estimator = Literal["k1", "k2", "k3", "unbiased_k3"]


def divergence(estimator: Estimator, new: Tensor, reference: Tensor, old: Tensor, clamp: float | None = None) -> Tensor:
    """Estimates the divergence at each token.

    With d = new - reference: `k1` d; `k2` d^2 / 2; `k3` exp(-d) + d - 1, at least 0 and, like k1, unbiased for tokens
    drawn from the policy (J. Schulman, "Approximating KL divergence"; GRPO uses k3). As a loss, k1's gradient is 0 on
    average, and k2's is the right one for tokens of the policy itself. `unbiased_k3` is k3 times exp(new - old), which
    corrects value and gradient for tokens drawn under the old weights (DeepSeek-V3.2, arXiv 2512.02556).

    Args:
        estimator: which one.
        new: [C] log-probabilities under the weights being trained, differentiable.
        reference: [C] under the reference, constant.
        old: [C] under the weights that the tokens were drawn from, constant.
        clamp: The estimate is held within -clamp and clamp, and has no gradient outside (verl, for k3: 10); None = off.

    Returns:
        [C] float32, differentiable.
    """
    estimate = _estimate(estimator, new, reference, old)
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def _estimate(estimator: Estimator, new: Tensor, reference: Tensor, old: Tensor) -> Tensor:
    gap = torch.clamp(new - reference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    match estimator:
        case "k1":
            return gap
        case "k2":
            return 0.5 * gap.square()
        case "k3":
            return torch.expm1(-gap) + gap
        case "unbiased_k3":
            return importance_ratio(new - old) * (torch.expm1(-gap) + gap)
