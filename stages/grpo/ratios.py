"""Importance ratios between two sets of log-probabilities of the same tokens: by token, by completion, corrected.

Shapes: C tokens of whole completions, in any order.
"""

import torch
from torch import Tensor

from stages.grpo.names import Correction

LOG_RATIO_LIMIT = 20.0
"""Bound of the absolute log-ratio before exp, so that one broken token cannot make the loss infinite."""


def importance_ratio(log_ratio: Tensor) -> Tensor:
    """Returns exp of log-ratios of any shape; log-ratios are clamped first, so that the result is finite."""
    return torch.exp(torch.clamp(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def sequence_sums(values: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Returns for each token the sum of a value over its completion, and the completion's number of tokens.

    `torch.unique` would make the host wait for a GPU, because the size of its result depends on values.

    Args:
        values: [C].
        sequences: [C] int, the completion of each token.

    Returns:
        Two tensors [C]: sums, differentiable, and numbers of tokens.
    """
    ordered, order = torch.sort(sequences)
    steps = torch.zeros_like(ordered)
    steps[1:] = ordered[1:] != ordered[:-1]
    number = torch.empty_like(order).index_copy_(0, order, steps.cumsum(0))  # of the completion, from 0
    sums = torch.zeros_like(values).index_add(0, number, values)
    lengths = torch.zeros_like(order).index_add(0, number, torch.ones_like(order))
    return sums[number], lengths[number]


def correction_factors(
    kind: Correction, old: Tensor, sampler: Tensor, sequences: Tensor, floor: float, cap: float
) -> Tensor | None:
    """Returns a factor for each token's loss that corrects for sampling with the engine instead of the trainer.

    The importance R is the ratio of the probabilities under trainer and sampler, of the token or of its whole
    completion. `truncate` clamps R to [floor, cap] (truncated importance sampling, Ionides 2008). `mask` replaces R
    outside this interval by 0 (IcePop, TRL). Masked tokens still count in the denominators of the loss.

    Args:
        kind: Name of the correction.
        old: [C] log-probabilities of the trainer under the starting weights, constant.
        sampler: [C] log-probabilities that the sampler reported.
        sequences: [C] int, the completion of each token.
        floor: Lower bound of R.
        cap: Upper bound of R.

    Returns:
        [C] constant factors; None for `none`.
    """
    if kind == "none":
        return None
    gap = old - sampler
    if kind.startswith("sequence"):
        gap, _ = sequence_sums(gap, sequences)
    importance = importance_ratio(gap)
    if kind.endswith("truncate"):
        return importance.clamp(floor, cap)
    return torch.where((importance < floor) | (importance > cap), 0.0, importance)
