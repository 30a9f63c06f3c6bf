"""Self-attention over shared prompts: `TreeAttention` on the CPU, flex_attention on CUDA."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stages.training.model.block_mask import block_mask
from stages.training.model.tree_attention import TreeAttention, TreePlan, plan_tree

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs that every attention layer needs for a micro-batch of N tokens.

    Attributes:
        cos: [N, 1, D] cosines of the rotation, in the compute dtype.
        sin: [N, 1, D] sines, the first half negated, in the compute dtype.
        tree: The pairs of tokens that attend: a plan on the CPU, a block mask on CUDA.
    """

    cos: Tensor
    sin: Tensor
    tree: "TreePlan | BlockMask"


def attention_tree(segment_ids: Tensor, parent_ids: Tensor, device: torch.device) -> "TreePlan | BlockMask":
    """Returns the pairs of tokens that attend: token i attends to j <= i of its segment and to its whole prompt.

    Args:
        segment_ids: [N] on the CPU.
        parent_ids: [N] on the CPU, the segment of each token's prompt.
        device: Device that computes the attention.
    """
    if device.type == "cpu":
        return plan_tree(segment_ids, parent_ids)
    return block_mask(segment_ids, parent_ids, device)


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
    """Applies the rotary position embedding (half rotation, as in Hugging Face checkpoints) to [N, H, D]."""
    return _Rotation.apply(x, inputs.cos, inputs.sin)  # pyright: ignore[reportReturnType]


class TreeSelfAttention(nn.Module):
    """Grouped-query self-attention with the interface that torchtune's layer calls.

    torchtune 0.6.1's own module does not fit: its Qwen2 builder always adds q, k and v biases, it normalizes queries
    and keys after the rotation (Qwen3 does so before), and it represents shared prompts only as a dense mask.

    Args:
        embed_dim: Width of the residual stream.
        num_heads: Number of query heads H.
        num_kv_heads: Number of key heads K.
        head_dim: Width D of a head.
        qkv_bias: Whether q, k and v have a bias.
        output_bias: Whether the output projection has a bias.
        q_norm: Norm over D of each query head, or None.
        k_norm: The same for keys.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        output_bias: bool,
        q_norm: nn.Module | None,
        k_norm: nn.Module | None,
    ) -> None:
        super().__init__()
        self.cache_enabled = False  # torchtune's decoder reads it
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=qkv_bias)
        self.output_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=output_bias)
        self.q_norm, self.k_norm = q_norm, k_norm

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tree: "TreePlan | BlockMask") -> Tensor:
        """Returns the attention output, [N, H, D]."""
        if isinstance(tree, TreePlan):
            return TreeAttention.apply(q, k, v, tree)  # pyright: ignore[reportReturnType]
        from torch.nn.attention.flex_attention import flex_attention

        flex: Any = flex_attention if torch.compiler.is_compiling() else _flex()  # a compiled layer compiles it, too
        heads = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        mixed = flex(*heads, block_mask=tree, enable_gqa=self.num_heads != self.num_kv_heads)
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
        # -1: with tensor parallelism, some of the heads
        q = self.q_proj(x).view(tokens, -1, self.head_dim)
        k = self.k_proj(x).view(tokens, -1, self.head_dim)
        v = self.v_proj(x).view(tokens, -1, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, mask), rotate(k, mask)
        mixed = self.attend(q, k, v, mask.tree)
        return self.output_proj(mixed.reshape(1, tokens, -1))
