"""Small modules that families of models need beside torchtune's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from stages.training.model.components import FeedForward, RMSNorm

if TYPE_CHECKING:
    from stages.models.shape import DecoderShape, Experts


class Norm(RMSNorm):
    """torchtune's RMS norm with the scale in float32 too: a bf16 scale makes torch use slow, unfused operations.

    Args:
        dim: Width.
        shape: Its epsilon, and whether a norm multiplies by 1 + `scale`.
    """

    def __init__(self, dim: int, shape: DecoderShape) -> None:
        super().__init__(dim, eps=shape.norm_eps)
        self.offset = 1.0 if shape.offset_norms else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width], computed in float32."""
        scale = self.scale.float()
        scale = scale + self.offset if self.offset else scale
        return functional.rms_norm(x.float(), self.normalized_shape, scale, self.eps).to(x.dtype)


class Scaled(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return x * self.factor


class ScaledEmbedding(nn.Embedding):
    """An embedding whose output is multiplied by a constant that is rounded to the compute type, as in Gemma."""

    factor = 1.0

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """[..., N] token ids -> [..., N, width]."""
        embedded = super().forward(input)
        return embedded if self.factor == 1.0 else embedded * float(torch.tensor(self.factor, dtype=embedded.dtype))


class GatedHalves(nn.Module):
    """The product of the activated first half and the second half: a feed-forward network with one input matrix."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[..., 2 F] -> [..., F]."""
        gate, up = x.chunk(2, dim=-1)
        return self.activation(gate) * up


def layer_norm(shape: DecoderShape, name: str | None, factor: float = 1.0) -> nn.Module:
    """Returns the norm of a place in a layer, followed by a constant factor; the identity if there is neither."""
    if factor != 1.0:
        assert name is None  # no family has both, and the norm's parameter would have another name
        return Scaled(factor)
    return nn.Identity() if name is None else Norm(shape.embed_dim, shape)


class Mixture(nn.Module):
    """A mixture of experts, each a gated feed-forward network; a router chooses some per token (arXiv 2505.09388).

    In bf16 on a GPU, three grouped products compute all experts; elsewhere, one expert is computed after another.
    Experts without tokens take part too, so that all processes have gradients of the same parameters.

    Args:
        experts: Number of experts, and of those that process a token.
        networks: The experts.
        width: Width of the residual stream.

    Attributes:
        members: [S, N] bool, true for the tokens of each sequence; the caller sets it before a forward pass.
        loads: Takes, of each sequence, how often each expert was chosen and the sum of its probabilities, [S, experts];
            None while backward computes the layer again.
    """

    def __init__(self, experts: Experts, networks: list[FeedForward], width: int) -> None:
        super().__init__()
        self.settings = experts
        self.router = nn.Linear(width, experts.count, bias=False)
        self.experts = nn.ModuleList(networks)
        self.members: Tensor | None = None
        self.loads: list[tuple[Tensor, Tensor]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[1, N, width] -> [1, N, width]."""
        tokens, active = x.flatten(0, -2), self.settings.active
        chances = torch.softmax(self.router(tokens).float(), -1)
        factors, chosen = chances.topk(active, -1)  # [N, active]
        if self.members is not None:
            members = self.members.to(chances.dtype)
            load = members @ torch.zeros_like(chances).scatter(1, chosen, 1.0), members @ chances
            if self.loads is not None:
                self.loads.append(load)
        if self.settings.normalized:
            factors = factors / factors.sum(-1, keepdim=True)
        expert_of = chosen.flatten()
        order = expert_of.argsort(stable=True)
        counts = (expert_of[:, None] == torch.arange(self.settings.count, device=x.device)).sum(0)
        token_of = order // active
        outputs = self._grouped if x.is_cuda and x.dtype == torch.bfloat16 else self._one_by_one
        weighted = outputs(tokens[token_of], counts) * factors.to(x.dtype).flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, token_of, weighted).view_as(x)

    def _one_by_one(self, inputs: Tensor, counts: Tensor) -> Tensor:
        parts = inputs.split(counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])

    def _grouped(self, inputs: Tensor, counts: Tensor) -> Tensor:
        """Computes rows that are sorted by expert; the weights are copied into one tensor for each product."""
        ends = counts.cumsum(0, dtype=torch.int32)

        def product(rows: Tensor, name: str) -> Tensor:
            weights = torch.stack([expert.get_parameter(f"{name}.weight") for expert in self.experts])
            return functional.grouped_mm(rows, weights.transpose(-2, -1), offs=ends)

        gated = functional.silu(product(inputs, "w1")) * product(inputs, "w3")
        return product(gated, "w2")


def feed_forward(shape: DecoderShape) -> FeedForward | Mixture:
    """Returns a layer's feed-forward network."""
    if shape.experts is None:
        return _gated(shape)
    return Mixture(shape.experts, [_gated(shape) for _ in range(shape.experts.count)], shape.embed_dim)


def _gated(shape: DecoderShape) -> FeedForward:
    activation = nn.SiLU() if shape.activation == "silu" else nn.GELU(approximate="tanh")
    width, hidden, bias = shape.embed_dim, shape.hidden_dim, shape.mlp_bias
    down = nn.Linear(hidden, width, bias=bias)
    if shape.fused:
        gates = nn.Linear(width, 2 * hidden, bias=bias)
        return FeedForward(gate_proj=gates, down_proj=down, activation=GatedHalves(activation))
    gate, up = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
    return FeedForward(gate_proj=gate, down_proj=down, up_proj=up, activation=activation)
