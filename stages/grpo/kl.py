"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

Shapes: C tokens, in any order.
"""

import torch
from torch import Tensor

from stages.grpo.names import Estimator
from stages.grpo.ratios import LOG_RATIO_LIMIT, importance_ratio


def divergence(estimator: Estimator, new: Tensor, reference: Tensor, old: Tensor, clamp: float | None = None) -> Tensor:
    """Returns an estimate of the divergence at each token.

    With d = new - reference, the estimators are `k1`: d; `k2`: d^2 / 2; `k3`: exp(-d) + d - 1. k3 is at least 0. k1 and
    k3 are unbiased for tokens drawn from the policy (J. Schulman, "Approximating KL divergence"; GRPO uses k3). As a
    loss, k1 has a gradient of 0 on average, and k2 has the correct gradient for tokens of the policy itself.
    `unbiased_k3` is k3 times exp(new - old), which corrects value and gradient for tokens drawn under the old weights
    (DeepSeek-V3.2, arXiv 2512.02556).

    Args:
        estimator: Name of the estimator.
        new: [C] log-probabilities under the weights being trained, differentiable.
        reference: [C] log-probabilities under the reference, constant.
        old: [C] log-probabilities under the weights that the tokens were drawn from, constant.
        clamp: Bound of the estimate's absolute value, beyond which it has no gradient (verl: 10 for k3); None for none.

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
