"""How the losses of tokens become the loss of an optimizer step.

Shapes: C completion tokens of the step, in any order; S completions; G groups.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "group_mean", "inverse_length", "constant"]


def token_shares(
    aggregation: Aggregation,
    sequence_of_token: Tensor,
    constant_tokens: int | None = None,
    mean_length: float | None = None,
    group_of_token: Tensor | None = None,
) -> Tensor:
    """What each token's loss is multiplied by so that the plain sum is the aggregated loss of an optimizer step.

    The shares are taken over all tokens of the step, wherever they are computed: that is what makes the loss
    independent of micro-batches, packing and the number of processes.

    Args:
        aggregation: With L the tokens of the token's completion, `token_mean` 1 / C (DAPO, arXiv 2503.14476);
            `sequence_mean` 1 / (S L) (GRPO, arXiv 2402.03300); `constant` 1 / (S constant_tokens) (Dr. GRPO, arXiv
            2503.20783); `inverse_length` mean_length / (C L), OpenPipe's: a token weighs 1 / L, rescaled to a mean of
            1 over the whole batch, and the step divides by its own tokens. In a batch of one step that is
            `sequence_mean`; in a batch of several, a step of longer completions weighs less. With M the tokens of the
            token's group in the step, `group_mean` 1 / (G M): the token mean of each group, then the mean over groups,
            which is the loss of TRL at 69ad852e where a micro-batch holds one group.
        sequence_of_token: [C] int, the completion each token of the step belongs to.
        constant_tokens: the length of `constant`.
        mean_length: tokens over completions of the whole batch, for `inverse_length`.
        group_of_token: [C] int, the group that each token's completion belongs to, for `group_mean`.

    Returns:
        [C] float32.

    Raises:
        ValueError: The aggregation's own length, or the groups, are missing.
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
    """For each token the number of tokens in its part: [C] float32."""
    _, inverse, counts = torch.unique(part_of_token, return_inverse=True, return_counts=True)
    return counts[inverse].to(torch.float32)
