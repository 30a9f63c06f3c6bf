"""Self-attention over shared prompts: `TreeAttention` on the CPU, flex_attention on CUDA."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stages.models.shape import DecoderShape
from stages.training.model.block_mask import block_mask
from stages.training.model.parts import Norm
from stages.training.model.tree_attention import TreeAttention, TreePlan, Window, plan_tree

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs that every attention layer needs for a micro-batch of N tokens.

    Attributes:
        cos: [N, 1, R] cosines of the rotation of R of a head's D dimensions, in the compute dtype.
        sin: [N, 1, R] sines, the first half negated, in the compute dtype.
        tree: The pairs of tokens that attend: a plan on the CPU, a block mask on CUDA.
        sliding: The same for sliding layers; None if there are none.
    """

    cos: Tensor
    sin: Tensor
    tree: "TreePlan | BlockMask"
    sliding: "AttentionInputs | None" = None


def attention_tree(
    segment_ids: Tensor, parent_ids: Tensor, device: torch.device, window: Window | None = None
) -> "TreePlan | BlockMask":
    """Returns the pairs of tokens that attend: token i attends to j <= i of its segment and to its whole prompt.

    Args:
        segment_ids: [N] on the CPU.
        parent_ids: [N] on the CPU, the segment of each token's prompt.
        device: Device that computes the attention.
        window: Restricts the pairs to near tokens; None for a layer that does not slide.
    """
    if device.type == "cpu":
        return plan_tree(segment_ids, parent_ids, window)
    return block_mask(segment_ids, parent_ids, device, window)


@cache
def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


class _Rotation(torch.autograd.Function):
    """x cos + swap(x) sin, where swap exchanges the halves of a head. Backward needs neither x nor the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        half = x.shape[-1] // 2
        return (x * cos).addcmul_(torch.roll(x, half, -1), sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        half = grad.shape[-1] // 2
        return (grad * cos).addcmul_(torch.roll(grad, half, -1), sin, value=-1.0), None, None


def rotate(x: Tensor, inputs: AttentionInputs) -> Tensor:
    """Applies the rotary position embedding (half rotation, as in Hugging Face checkpoints) to [N, H, D].

    Dimensions from the R-th on stay as they are.
    """
    rotated = inputs.cos.shape[-1]
    if rotated == x.shape[-1]:
        return _Rotation.apply(x, inputs.cos, inputs.sin)  # pyright: ignore[reportReturnType]
    return torch.cat([rotate(x[..., :rotated], inputs), x[..., rotated:]], -1)


class TreeSelfAttention(nn.Module):
    """Grouped-query self-attention with the interface that torchtune's layer calls.

    torchtune 0.6.1's own module does not fit: its Qwen2 builder always adds q, k and v biases, it normalizes queries
    and keys after the rotation (Qwen3 does so before), and it represents shared prompts only as a dense mask.

    Args:
        shape: Sizes and switches of the decoder: H query heads and K key heads of width D.
        layer: Number of the layer.
    """

    def __init__(self, shape: DecoderShape, layer: int) -> None:
        super().__init__()
        self.cache_enabled = False  # torchtune's decoder reads it
        self.head_dim, self.grouped = shape.head_dim, shape.heads != shape.kv_heads
        self.scale = shape.head_dim**-0.5 if shape.attention_scale is None else shape.attention_scale
        self.slides, self.rotates = layer in shape.sliding_layers, layer not in shape.unrotated_layers
        self.norms_heads = shape.qk_norm == "head"
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.widths = [queries, keys, keys]
        if shape.fused:
            self.qkv_proj = nn.Linear(shape.embed_dim, sum(self.widths), bias=shape.qkv_bias)
        else:
            self.q_proj = nn.Linear(shape.embed_dim, queries, bias=shape.qkv_bias)
            self.k_proj = nn.Linear(shape.embed_dim, keys, bias=shape.qkv_bias)
            self.v_proj = nn.Linear(shape.embed_dim, keys, bias=shape.qkv_bias)
        self.output_proj = nn.Linear(queries, shape.embed_dim, bias=shape.output_bias)
        self.q_norm = self.k_norm = None
        if shape.qk_norm:
            self.q_norm = Norm(shape.head_dim if self.norms_heads else queries, shape)
            self.k_norm = Norm(shape.head_dim if self.norms_heads else keys, shape)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tree: "TreePlan | BlockMask") -> Tensor:
        """Returns the attention output, [N, H, D]."""
        if isinstance(tree, TreePlan):
            return TreeAttention.apply(q, k, v, tree, self.scale)  # pyright: ignore[reportReturnType]
        from torch.nn.attention.flex_attention import flex_attention

        flex: Any = flex_attention if torch.compiler.is_compiling() else _flex()  # a compiled layer compiles it, too
        heads = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        mixed = flex(*heads, block_mask=tree, scale=self.scale, enable_gqa=self.grouped)
        return mixed.squeeze(0).transpose(0, 1)

    def forward(self, x: Tensor, y: Tensor, *, mask: AttentionInputs, input_pos: Tensor | None = None) -> Tensor:
        """Computes the attention.

        Args:
            x: [1, N, embed_dim].
            y: The same tensor, not read; torchtune's layer passes the source of the keys separately.
            mask: Rotation and attending pairs of the micro-batch.
            input_pos: Unused; positions are in `mask`.

        Returns:
            [1, N, embed_dim].
        """
        tokens = x.shape[1]
        inputs = mask.sliding if self.slides and mask.sliding is not None else mask
        q, k, v = self._projected(x)
        if not self.norms_heads:
            q, k = self._normalized(q, k)
        # -1: with tensor parallelism, some of the heads
        q, k, v = (part.reshape(tokens, -1, self.head_dim) for part in (q, k, v))
        if self.norms_heads:
            q, k = self._normalized(q, k)
        if self.rotates:
            q, k = rotate(q, inputs), rotate(k, inputs)
        mixed = self.attend(q, k, v, inputs.tree)
        return self.output_proj(mixed.reshape(1, tokens, -1))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        if hasattr(self, "qkv_proj"):
            return self.qkv_proj(x).split(self.widths, dim=-1)
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def _normalized(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)
