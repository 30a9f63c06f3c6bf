"""How the losses of tokens become the loss of an optimizer step.

Shapes: C completion tokens of the step, in any order; S completions.
"""

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "sequence_mean", "inverse_length", "constant"]


def token_shares(
    aggregation: Aggregation,
    sequence_of_token: Tensor,
    constant_tokens: int | None = None,
    mean_length: float | None = None,
) -> Tensor:
    """What each token's loss is multiplied by so that the plain sum is the aggregated loss of an optimizer step.

    The shares are taken over all tokens of the step, wherever they are computed: that is what makes the loss
    independent of micro-batches, packing and the number of processes.

    Args:
        aggregation: With L the tokens of the token's completion, `token_mean` 1 / C (DAPO, arXiv 2503.14476);
            `sequence_mean` 1 / (S L) (GRPO, arXiv 2402.03300); `constant` 1 / (S constant_tokens) (Dr. GRPO, arXiv
            2503.20783); `inverse_length` mean_length / (C L), OpenPipe's: a token weighs 1 / L, rescaled to a mean of
            1 over the whole batch, and the step divides by its own tokens. In a batch of one step that is
            `sequence_mean`; in a batch of several, a step of longer completions weighs less.
        sequence_of_token: [C] int, the completion each token of the step belongs to.
        constant_tokens: the length of `constant`.
        mean_length: tokens over completions of the whole batch, for `inverse_length`.

    Returns:
        [C] float32.

    Raises:
        ValueError: The aggregation's own length is missing.
    """
    if sequence_of_token.numel() == 0:
        return torch.zeros(0)
    _, inverse, lengths = torch.unique(sequence_of_token, return_inverse=True, return_counts=True)
    tokens, sequences = sequence_of_token.numel(), lengths.numel()
    match aggregation:
        case "token_mean":
            return torch.full((tokens,), 1.0 / tokens)
        case "sequence_mean":
            return 1.0 / (sequences * lengths[inverse].to(torch.float32))
        case "inverse_length":
            if mean_length is None:
                raise ValueError("aggregation 'inverse_length' needs mean_length")
            return mean_length / (tokens * lengths[inverse].to(torch.float32))
        case "constant":
            if constant_tokens is None:
                raise ValueError("aggregation 'constant' needs constant_tokens")
            return torch.full((tokens,), 1.0 / (sequences * constant_tokens))
