"""The policy: a torchtune decoder of the checkpoint's shape, with the output head on completion positions only.

Shapes: N tokens of a micro-batch, C of them completion tokens in the loss, D head width, E width, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stages.models.shape import DecoderShape
from stages.training.model.attention import AttentionInputs, TreeSelfAttention, attention_tree
from stages.training.model.components import FeedForward, RMSNorm, TransformerDecoder, TransformerSelfAttentionLayer
from stages.training.model.head import token_statistics
from stages.training.model.rotation import rotation_frequencies
from stages.training.model.transfer import to_device
from stages.training.trainer_batch import FlatRows


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of the model for one micro-batch; index tensors are int64 on the model's device.

    Attributes:
        tokens: [1, N] token ids.
        attention: Rotation of the positions, and the pairs of tokens that attend.
        predictors: [C] flat index of the token before each target, whose logits predict it.
        targets: [C] token ids.
    """

    tokens: Tensor
    attention: AttentionInputs
    predictors: Tensor
    targets: Tensor


class Norm(RMSNorm):
    """torchtune's RMS norm with the scale in float32 too: a bf16 scale makes torch use slow, unfused operations."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width], computed in float32."""
        return functional.rms_norm(x.float(), self.normalized_shape, self.scale.float(), self.eps).to(x.dtype)


class DecoderLayer(TransformerSelfAttentionLayer):
    """torchtune's layer, optionally with activation checkpointing.

    torchtune's `set_activation_checkpointing` is not used: it renames parameters to `..._checkpoint_wrapped_module...`,
    which the names in stored training states would not match, and importing `torchtune.training` takes 0.24 s of CPU.
    """

    recompute = False
    """Whether activations inside the layer are recomputed in backward."""

    def compile_forward(self) -> None:
        """Compiles the forward pass, with the recomputation if there is one; hooks of FSDP2 stay outside.

        One graph serves all layers, and micro-batches of all sizes and masks.
        """
        self.forward = torch.compile(self.forward, dynamic=True)

    def forward(self, x: Tensor, *, mask: Any = None, input_pos: Tensor | None = None, **kwargs: Any) -> Tensor:
        """[1, N, width] -> [1, N, width]."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(super().forward, x, mask=mask, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return super().forward(x, mask=mask)


class DecoderModel(nn.Module):
    """A decoder whose head is computed at the predictors of the tokens in the loss only.

    Args:
        shape: Sizes and switches of the decoder.
        activation_checkpointing: Whether layers are recomputed in backward.
    """

    def __init__(self, shape: DecoderShape, *, activation_checkpointing: bool) -> None:
        super().__init__()
        self.shape = shape
        self.decoder = build_decoder(shape, activation_checkpointing)
        self.compiled = False
        self.frequencies: Tensor
        self.place_frequencies()

    def compile_forward(self) -> None:
        """Compiles each layer, and what the head does with its logits."""
        self.compiled = True
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            layer.compile_forward()

    def place_frequencies(self) -> None:
        """Computes the constants of the rotation on the CPU; repeat it for a model built on the meta device."""
        with torch.device("cpu"):
            self.frequencies = rotation_frequencies(self.shape)

    def inputs(self, flat: FlatRows, dtype: torch.dtype, device: torch.device) -> ModelInputs:
        """Returns the inputs for flat rows, for a model on `device` that computes in `dtype`."""
        angles = flat.positions.to(torch.float32)[:, None] * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        return ModelInputs(
            tokens=to_device(flat.tokens[None], device),
            attention=AttentionInputs(
                cos=to_device(torch.cat([cos, cos], -1)[:, None], device, dtype),
                sin=to_device(torch.cat([-sin, sin], -1)[:, None], device, dtype),
                tree=attention_tree(flat.segment_ids, flat.parent_ids, device),
            ),
            predictors=to_device(flat.predictors[0], device),
            targets=to_device(flat.tokens[flat.predictors[1]], device),
        )

    def predicting_states(self, inputs: ModelInputs) -> Tensor:
        """Runs the decoder on all tokens and returns the last hidden states of the predictors: [C, E]."""
        hidden = self.decoder(inputs.tokens, mask=inputs.attention).squeeze(0)
        return hidden.index_select(0, inputs.predictors)


class Policy(DecoderModel):
    """A model that computes log-probabilities and entropies of completion tokens.

    Args:
        shape: Sizes and switches of the decoder.
        activation_checkpointing: Whether layers are recomputed in backward.
        chunk_tokens: Number of tokens whose probabilities over V may be in memory at a time.
    """

    def __init__(self, shape: DecoderShape, *, activation_checkpointing: bool, chunk_tokens: int) -> None:
        super().__init__(shape, activation_checkpointing=activation_checkpointing)
        self.chunk_tokens = chunk_tokens
        self.head = None if shape.tied else nn.Linear(shape.embed_dim, shape.vocab_size, bias=False)

    def forward(
        self, inputs: ModelInputs, temperature: float, head_dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs the decoder on all tokens and the head on the predictors only.

        Args:
            inputs: The micro-batch.
            temperature: Divisor of the logits.
            head_dtype: Type to which the head and its inputs are cast; None: that of the head.

        Returns:
            Log-probabilities [C] of the targets and entropies [C] of the predicting distributions, float32.
        """
        chosen = self.predicting_states(inputs)
        weight = self.decoder.tok_embeddings.weight if self.head is None else self.head.weight
        if isinstance(weight, DTensor):
            weight = weight.full_tensor()  # of the parts that the processes of a tensor group hold
        weight = weight.to(head_dtype or weight.dtype)
        chosen = chosen.to(weight.dtype)
        return token_statistics(chosen, weight, inputs.targets, temperature, self.chunk_tokens, compiled=self.compiled)


class ValueModel(DecoderModel):
    """A model that computes values w h of the states before completion tokens.

    The head has no bias, as in Open-Reasoner-Zero (`orz/ppo/models.py`), whose head begins at N(0, 1 / (E + 1)). Ours
    begins at 0, so that the first values are equal whatever the text.

    The head is computed in float32, with weights in float32: bf16 near 0.7 has steps of 0.004. The states that it reads
    have the compute type of the decoder.

    Args:
        shape: Sizes and switches of the decoder, with a value head.
        activation_checkpointing: Whether layers are recomputed in backward.
    """

    def __init__(self, shape: DecoderShape, *, activation_checkpointing: bool) -> None:
        super().__init__(shape, activation_checkpointing=activation_checkpointing)
        self.value_head = nn.Linear(shape.embed_dim, 1, bias=False)

    def forward(self, inputs: ModelInputs) -> Tensor:
        """Returns values [C], float32, before a bound; each is read from the last token before one in the loss."""
        return self.value_head(self.predicting_states(inputs).float()).squeeze(-1)


def build_decoder(shape: DecoderShape, activation_checkpointing: bool) -> TransformerDecoder:
    """Builds torchtune's decoder. Its output is the normalized hidden state; the head belongs to the policy."""
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
