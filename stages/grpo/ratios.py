"""Importance ratios between two sets of log-probabilities of the same tokens: by token, by completion, corrected.

Shapes: C tokens, in any order; every completion that has a token here has all its tokens here.
"""

from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within this before exp, so that one broken token cannot make the loss infinite."""

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def importance_ratio(log_ratio: Tensor) -> Tensor:
    """exp of log-ratios of any shape, held finite."""
    return torch.exp(torch.clamp(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def sequence_sums(values: Tensor, sequences: Tensor) -> tuple[Tensor, Tensor]:
    """Adds up [C] values over each token's completion, differentiably.

    Args:
        values: [C].
        sequences: [C] int, the completion of each token.

    Returns:
        Two [C]: the sum over the token's completion, and that completion's number of tokens.
    """
    _, inverse, lengths = torch.unique(sequences, return_inverse=True, return_counts=True)
    sums = torch.zeros(lengths.numel(), dtype=values.dtype, device=values.device).index_add(0, inverse, values)
    return sums[inverse], lengths[inverse]


def correction_factors(
    kind: Correction, old: Tensor, sampler: Tensor, sequences: Tensor, floor: float, cap: float
) -> Tensor | None:
    """What each token's loss is multiplied by to correct for sampling with the engine instead of the trainer.

    The importance R is that of the token, trainer over sampler, or the product over its completion. `truncate` holds R
    within [floor, cap] (truncated importance sampling, Ionides 2008), `mask` leaves R inside and puts 0 outside (the
    masks of IcePop and TRL). A masked token still counts in the denominators of the loss.

    Args:
        kind: which correction.
        old: [C] log-probabilities of the trainer under the starting weights, constant.
        sampler: [C] log-probabilities that the sampler reported.
        sequences: [C] int, the completion of each token.
        floor: lower bound of R.
        cap: upper bound of R.

    Returns:
        [C] constant factors, None for `none`.
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
