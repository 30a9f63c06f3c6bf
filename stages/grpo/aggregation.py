"""Aggregation of token losses to the loss of an optimizer step.

Shapes: C completion tokens of the step, in any order; S completions; G groups.
"""

import torch
from torch import Tensor

from stages.grpo.names import Aggregation


def token_shares(
    aggregation: Aggregation,
    sequence_of_token: Tensor,
    constant_tokens: int | None = None,
    mean_length: float | None = None,
    group_of_token: Tensor | None = None,
) -> Tensor:
    """Returns each token's factor in the loss of an optimizer step: the step's loss is the sum of factor times loss.

    The factors are computed over all tokens of the step, so the loss does not depend on micro-batches, packing and the
    number of processes.

    Args:
        aggregation: Name of the factors. L is the number of tokens of the token's completion, M that of its group.
            `token_mean`: 1 / C (DAPO, arXiv 2503.14476). `sequence_mean`: 1 / (S L) (GRPO, arXiv 2402.03300).
            `constant`: 1 / (S constant_tokens) (Dr. GRPO, arXiv 2503.20783). `group_mean`: 1 / (G M), the mean over
            groups of each group's token mean, which is the loss of TRL at 69ad852e if a micro-batch holds one group.
            `inverse_length`: mean_length / (C L) (OpenPipe), a token weight of 1 / L that is scaled to a mean of 1 over
            the whole batch, divided by the number of the step's tokens. It equals `sequence_mean` in a batch of one
            step; in a batch of several steps, a step of longer completions weighs less.
        sequence_of_token: [C] int, the completion of each token of the step.
        constant_tokens: Length for `constant`.
        mean_length: Tokens per completion in the whole batch, for `inverse_length`.
        group_of_token: [C] int, the group of each token's completion, for `group_mean`.

    Returns:
        [C] float32.

    Raises:
        ValueError: An argument that the aggregation needs is None.
    """
    if sequence_of_token.numel() == 0:
        return torch.zeros(0)
    lengths = _sizes(sequence_of_token)
    tokens, sequences = sequence_of_token.numel(), sequence_of_token.unique().numel()
    match aggregation:
        case "token_mean":
            return torch.full((tokens,), 1.0 / tokens)
        case "sequence_mean":
            return 1.0 / (sequences * lengths)
        case "group_mean":
            if group_of_token is None:
                raise ValueError("aggregation 'group_mean' needs group_of_token")
            return 1.0 / (group_of_token.unique().numel() * _sizes(group_of_token))
        case "inverse_length":
            if mean_length is None:
                raise ValueError("aggregation 'inverse_length' needs mean_length")
            return mean_length / (tokens * lengths)
        case "constant":
            if constant_tokens is None:
                raise ValueError("aggregation 'constant' needs constant_tokens")
            return torch.full((tokens,), 1.0 / (sequences * constant_tokens))


def _sizes(part_of_token: Tensor) -> Tensor:
    """Returns for each token the number of tokens in its part (completion or group): [C] float32."""
    _, inverse, counts = torch.unique(part_of_token, return_inverse=True, return_counts=True)
    return counts[inverse].to(torch.float32)
