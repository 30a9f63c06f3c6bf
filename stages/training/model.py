"""The policy: a torchtune decoder of the checkpoint's shape with a head on completion positions only.

Shapes: N tokens of a micro-batch, C of them completion tokens in the loss, D head width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stages.models.shape import DecoderShape
from stages.training.attention import AttentionInputs, TreeSelfAttention, attention_tree
from stages.training.components import FeedForward, RMSNorm, TransformerDecoder, TransformerSelfAttentionLayer
from stages.training.head import token_statistics
from stages.training.packed import FlatRows
from stages.training.rotation import rotation_frequencies


@dataclass(frozen=True)
class ModelInputs:
    """A micro-batch as the model takes it; index tensors are int64 on the model's device.

    Attributes:
        tokens: [1, N].
        attention: rotation and pairs that attend.
        predictors: [C] flat index of the token that predicts each target.
        targets: [C] token ids.
    """

    tokens: Tensor
    attention: AttentionInputs
    predictors: Tensor
    targets: Tensor


class Norm(RMSNorm):
    """torchtune's norm with the scale cast up too: with a bf16 scale torch falls back to slow, unfused operations."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width], computed in float32."""
        return functional.rms_norm(x.float(), self.normalized_shape, self.scale.float(), self.eps).to(x.dtype)


class DecoderLayer(TransformerSelfAttentionLayer):
    """torchtune's layer, which can forget its inside until backward."""

    recompute = False

    def forward(self, x: Tensor, *, mask: Any = None, input_pos: Tensor | None = None, **kwargs: Any) -> Tensor:
        """[1, N, width] -> [1, N, width]."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(super().forward, x, mask=mask, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return super().forward(x, mask=mask)


class Policy(nn.Module):
    """Log-probabilities and entropies of completion tokens.

    Args:
        shape: sizes and switches.
        activation_checkpointing: recompute layers in backward.
        chunk_tokens: how many tokens may have their probabilities over V in memory at a time.
    """

    def __init__(self, shape: DecoderShape, *, activation_checkpointing: bool, chunk_tokens: int) -> None:
        super().__init__()
        self.shape, self.chunk_tokens = shape, chunk_tokens
        self.decoder = build_decoder(shape, activation_checkpointing)
        self.head = None if shape.tied else nn.Linear(shape.embed_dim, shape.vocab_size, bias=False)
        self.frequencies: Tensor
        self.place_frequencies()

    def place_frequencies(self) -> None:
        """Computes the rotation's constants on the CPU (again, where the policy was built without memory)."""
        with torch.device("cpu"):
            self.frequencies = rotation_frequencies(self.shape)

    def inputs(self, flat: FlatRows, dtype: torch.dtype, device: torch.device) -> ModelInputs:
        """Prepares flat rows for the model, which is on `device` and computes in `dtype`."""
        angles = flat.positions.to(torch.float32)[:, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        return ModelInputs(
            tokens=flat.tokens[None].to(device),
            attention=AttentionInputs(
                cos=torch.cat([cos, cos], -1)[:, None].to(device, dtype),
                sin=torch.cat([-sin, sin], -1)[:, None].to(device, dtype),
                tree=attention_tree(flat.segment_ids, flat.parent_ids, device),
            ),
            predictors=flat.predictors[0].to(device),
            targets=flat.tokens[flat.predictors[1]].to(device),
        )

    def forward(self, inputs: ModelInputs, temperature: float) -> tuple[Tensor, Tensor]:
        """Runs the decoder on all tokens and the head on predictors only.

        Returns:
            Log-probabilities [C] of the targets and entropies [C] of the predicting distributions, float32.
        """
        hidden = self.decoder(inputs.tokens, mask=inputs.attention).squeeze(0)
        weight = self.decoder.tok_embeddings.weight if self.head is None else self.head.weight
        chosen = hidden.index_select(0, inputs.predictors).to(weight.dtype)
        return token_statistics(chosen, weight, inputs.targets, temperature, self.chunk_tokens)

    def logits(self, inputs: ModelInputs) -> Tensor:
        """Logits [C, V] of the predictors, for comparisons only."""
        hidden = self.decoder(inputs.tokens, mask=inputs.attention).squeeze(0)
        weight = self.decoder.tok_embeddings.weight if self.head is None else self.head.weight
        return hidden.index_select(0, inputs.predictors).to(weight.dtype) @ weight.t()


def build_decoder(shape: DecoderShape, activation_checkpointing: bool) -> TransformerDecoder:
    """Assembles torchtune's decoder; its output is the normalized hidden state, the head is the policy's."""
    layers = nn.ModuleList()
    for _ in range(shape.layers):
        layer = DecoderLayer(
            attn=TreeSelfAttention(  # pyright: ignore[reportArgumentType]
                embed_dim=shape.embed_dim,
                num_heads=shape.heads,
                num_kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                qkv_bias=shape.qkv_bias,
                output_bias=shape.output_bias,
                q_norm=Norm(shape.head_dim, eps=shape.norm_eps) if shape.qk_norm else None,
                k_norm=Norm(shape.head_dim, eps=shape.norm_eps) if shape.qk_norm else None,
            ),
            mlp=FeedForward(
                gate_proj=nn.Linear(shape.embed_dim, shape.hidden_dim, bias=shape.mlp_bias),
                down_proj=nn.Linear(shape.hidden_dim, shape.embed_dim, bias=shape.mlp_bias),
                up_proj=nn.Linear(shape.embed_dim, shape.hidden_dim, bias=shape.mlp_bias),
            ),
            sa_norm=Norm(shape.embed_dim, eps=shape.norm_eps),
            mlp_norm=Norm(shape.embed_dim, eps=shape.norm_eps),
        )
        layer.recompute = activation_checkpointing
        layers.append(layer)
    return TransformerDecoder(
        tok_embeddings=nn.Embedding(shape.vocab_size, shape.embed_dim),
        layers=layers,
        max_seq_len=2**31,
        num_heads=shape.heads,
        head_dim=shape.head_dim,
        norm=Norm(shape.embed_dim, eps=shape.norm_eps),
        output=nn.Identity(),
    )
