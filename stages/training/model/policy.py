"""The policy: a torchtune decoder of the checkpoint's shape, with the output head on completion positions only.

Shapes: N tokens of a micro-batch, C of them completion tokens in the loss of S completions, D head width, E width, V
vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from stages.models.rope import Rope
from stages.models.shape import DecoderShape
from stages.training.model.attention import AttentionInputs, TreeSelfAttention, attention_tree
from stages.training.model.components import TransformerDecoder, TransformerSelfAttentionLayer
from stages.training.model.head import token_statistics
from stages.training.model.parts import Mixture, Norm, ScaledEmbedding, feed_forward, layer_norm
from stages.training.model.rotation import rotation_factor, rotation_frequencies
from stages.training.model.transfer import to_device
from stages.training.model.tree_attention import Window
from stages.training.trainer_batch import FlatRows


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of the model for one micro-batch; index tensors are int64 on the model's device.

    Attributes:
        tokens: [1, N] token ids.
        attention: Rotation of the positions, and the pairs of tokens that attend.
        predictors: [C] flat index of the token before each target, whose logits predict it.
        targets: [C] token ids.
        sequences: [C] which completion a target belongs to, from 0 to S - 1; None for a model without experts.
        members: [S, N] bool, true for the tokens of a completion and of its prompt; None likewise. FSDP2 would cast
            numbers of another floating-point type to the compute type.
    """

    tokens: Tensor
    attention: AttentionInputs
    predictors: Tensor
    targets: Tensor
    sequences: Tensor | None = None
    members: Tensor | None = None


class DecoderLayer(TransformerSelfAttentionLayer):
    """torchtune's layer, optionally with activation checkpointing.

    torchtune's `set_activation_checkpointing` is not used: it renames parameters to `..._checkpoint_wrapped_module...`,
    which the names in stored optimizer states would not match, and importing `torchtune.training` takes 0.24 s of CPU.
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
        self.sliding_rope = shape.sliding_rope or shape.rope
        self.frequencies: Tensor
        self.sliding_frequencies: Tensor
        self.place_frequencies()

    def compile_forward(self) -> None:
        """Compiles each layer, and what the head does with its logits."""
        self.compiled = True
        # A router reports its load in forward only; by default, torch compiles no layer that does so and is recomputed.
        torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True  # pyright: ignore[reportPrivateUsage]
        for layer in self.decoder.layers:
            assert isinstance(layer, DecoderLayer)
            layer.compile_forward()

    def place_frequencies(self) -> None:
        """Computes the constants of the rotation on the CPU; repeat it for a model built on the meta device."""
        with torch.device("cpu"):
            self.frequencies = rotation_frequencies(self.shape.rope)
            self.sliding_frequencies = rotation_frequencies(self.sliding_rope)

    def inputs(self, flat: FlatRows, dtype: torch.dtype, device: torch.device) -> ModelInputs:
        """Returns the inputs for flat rows, for a model on `device` that computes in `dtype`."""
        sliding, window = None, self.shape.sliding_window
        if window is not None:
            near = Window(flat.positions, window)
            sliding = self._attention(flat, self.sliding_rope, self.sliding_frequencies, dtype, device, near)
        attention = self._attention(flat, self.shape.rope, self.frequencies, dtype, device)
        sequences = members = None
        if self.shape.experts is not None:
            prompts = flat.parent_ids[flat.predictors[1]]
            pairs, sequences = torch.stack([flat.sequences, prompts]).unique(dim=1, return_inverse=True)
            members = (flat.segment_ids == pairs[:, :, None]).any(0)
        return ModelInputs(
            tokens=to_device(flat.tokens[None], device),
            attention=replace(attention, sliding=sliding),
            predictors=to_device(flat.predictors[0], device),
            targets=to_device(flat.tokens[flat.predictors[1]], device),
            sequences=None if sequences is None else to_device(sequences, device),
            members=None if members is None else to_device(members, device),
        )

    @staticmethod
    def _attention(
        flat: FlatRows,
        rope: Rope,
        frequencies: Tensor,
        dtype: torch.dtype,
        device: torch.device,
        window: Window | None = None,
    ) -> AttentionInputs:
        angles, factor = flat.positions.to(torch.float32)[:, None] * frequencies, rotation_factor(rope)
        cos, sin = angles.cos() * factor, angles.sin() * factor
        return AttentionInputs(
            cos=to_device(torch.cat([cos, cos], -1)[:, None], device, dtype),
            sin=to_device(torch.cat([-sin, sin], -1)[:, None], device, dtype),
            tree=attention_tree(flat.segment_ids, flat.parent_ids, device, window),
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
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Runs the decoder on all tokens and the head on the predictors only.

        Args:
            inputs: The micro-batch.
            temperature: Divisor of the logits.
            head_dtype: Type to which the head and its inputs are cast; None: that of the head.

        Returns:
            Log-probabilities [C] of the targets, entropies [C] of the predicting distributions, and the router's
            auxiliary loss [C] of each target's sequence, float32; the last is None for a model without experts.
        """
        loads: list[tuple[Tensor, Tensor]] = []
        self._report_to(loads, inputs.members)
        chosen = self.predicting_states(inputs)
        self._report_to(None, inputs.members)
        weight = self.decoder.tok_embeddings.weight if self.head is None else self.head.weight
        if isinstance(weight, DTensor):
            weight = weight.full_tensor()  # of the parts that the processes of a tensor group hold
        weight = weight.to(head_dtype or weight.dtype)
        chosen = chosen.to(weight.dtype)
        divisor = temperature * self.shape.logit_divisor
        statistics = token_statistics(
            chosen, weight, inputs.targets, divisor, self.chunk_tokens, compiled=self.compiled
        )
        return *statistics, router_loss(loads, inputs)

    def _report_to(self, loads: list[tuple[Tensor, Tensor]] | None, members: Tensor | None) -> None:
        for layer in self.decoder.layers:
            if isinstance(layer.mlp, Mixture):
                layer.mlp.loads, layer.mlp.members = loads, members


def router_loss(loads: Sequence[tuple[Tensor, Tensor]], inputs: ModelInputs) -> Tensor | None:
    """Returns the auxiliary loss of load balancing for each target's prompt and completion, [C]; None without experts.

    It is the loss of Switch Transformers (arXiv 2101.03961, equations 4 to 6) as transformers computes it for a
    sequence by itself: experts x sum over experts of (share of the tokens that chose it) x (its mean probability), both
    over all layers. It is the number of active experts where the load is even, and at most the number of experts.
    Because it is that of one sequence, it depends neither on rows nor on micro-batches.

    Args:
        loads: For each layer, how often experts were chosen and the sums of their probabilities: [S, experts].
        inputs: The micro-batch.
    """
    if inputs.members is None or inputs.sequences is None:
        return None
    chosen, chances = (torch.stack(parts).mean(0) for parts in zip(*loads, strict=True))
    tokens = inputs.members.sum(1)
    return (chosen.shape[1] * (chosen * chances).sum(1) / tokens.square())[inputs.sequences]


class CriticModel(DecoderModel):
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
    layers, norms = nn.ModuleList(), shape.norms
    for number in range(shape.layers):
        layer = DecoderLayer(
            attn=TreeSelfAttention(shape, number),  # pyright: ignore[reportArgumentType]
            mlp=feed_forward(shape),
            sa_norm=layer_norm(shape, norms.sa_norm),
            mlp_norm=layer_norm(shape, norms.mlp_norm),
            sa_scale=layer_norm(shape, norms.sa_scale, shape.residual_scale),
            mlp_scale=layer_norm(shape, norms.mlp_scale, shape.residual_scale),
        )
        layer.recompute = activation_checkpointing
        layers.append(layer)
    embeddings = ScaledEmbedding(shape.vocab_size, shape.embed_dim)
    embeddings.factor = shape.embedding_scale
    return TransformerDecoder(
        tok_embeddings=embeddings,
        layers=layers,
        max_seq_len=2**31,
        num_heads=shape.heads,
        head_dim=shape.head_dim,
        norm=Norm(shape.embed_dim, shape),
        output=nn.Identity(),
    )
