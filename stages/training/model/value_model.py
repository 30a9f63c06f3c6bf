"""The value model: a decoder like the policy's, with a head that gives one number for each position.

Shapes: N tokens of a micro-batch, C of them in the loss, E width.
"""

import torch
from torch import Tensor, nn

from stages.models.shape import DecoderShape
from stages.training.model.policy import ModelInputs, Policy


class ValueModel(Policy):
    """A model that computes values w h of the states before completion tokens.

    The head has no bias, as in Open-Reasoner-Zero (`orz/ppo/models.py`), whose head begins at N(0, 1 / (E + 1)). Ours
    begins at 0, so that the first values are equal whatever the text.

    Args:
        shape: Sizes and switches of the decoder, with a value head.
        activation_checkpointing: Whether layers are recomputed in backward.
        chunk_tokens: Not used; a value takes no memory of the vocabulary's size.
    """

    def __init__(self, shape: DecoderShape, *, activation_checkpointing: bool, chunk_tokens: int) -> None:
        super().__init__(shape, activation_checkpointing=activation_checkpointing, chunk_tokens=chunk_tokens)
        self.value_head = nn.Linear(shape.embed_dim, 1, bias=False)

    def forward(self, inputs: ModelInputs, temperature: float) -> tuple[Tensor, Tensor]:
        """Runs the decoder on all tokens and the head on the last token before each one in the loss.

        Returns:
            Values [C] before a bound, and zeros [C] where a policy has entropies, float32.
        """
        hidden = self.decoder(inputs.tokens, mask=inputs.attention).squeeze(0)
        chosen = hidden.index_select(0, inputs.predictors)
        values = self.value_head(chosen.to(self.value_head.weight.dtype)).float().squeeze(-1)
        return values, torch.zeros_like(values)
