"""Work of the trainer's layer and head, counted on tensors without data: FLOPs, bytes, launches, least time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from stages.models.shape import DecoderShape
from stages.training.model import head
from stages.training.model.attention import AttentionInputs, TreeSelfAttention
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import build_decoder

PEAK_FLOPS, BANDWIDTH = 795e12, 3.35e12
"""Of an H100 80GB HBM3: measured rate of bf16 products, and bytes a second by its data sheet."""
CHUNK = 2048
META, DTYPE = torch.device("meta"), torch.bfloat16
_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}


@dataclass(frozen=True)
class Row:
    """A packed row: a prompt and its completions, in tokens."""

    prompt: int
    branches: int
    completion: int

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.prompt + self.branches * self.completion

    @property
    def pairs(self) -> int:
        """Pairs of tokens that attend."""
        prompt, own = (n * (n + 1) // 2 for n in (self.prompt, self.completion))
        return prompt + self.branches * (self.prompt * self.completion + own)


@dataclass
class Work:
    """FLOPs, bytes, launches, and the least time on the card in seconds, of some operations."""

    flops: float = 0.0
    bytes: float = 0.0
    launches: int = 0
    seconds: float = 0.0

    def add(self, flops: float, moved: float) -> None:
        """Adds one kernel."""
        self.flops += flops
        self.bytes += moved
        self.launches += 1
        self.seconds += max(flops / PEAK_FLOPS, moved / BANDWIDTH)

    def times(self, count: int) -> "Work":
        """Returns the work done several times."""
        return Work(self.flops * count, self.bytes * count, self.launches * count, self.seconds * count)

    def plus(self, other: "Work") -> "Work":
        """Returns the sum of both."""
        return Work(
            self.flops + other.flops, self.bytes + other.bytes, self.launches + other.launches,
            self.seconds + other.seconds,
        )  # fmt: skip


def _size(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


class Counter(TorchDispatchMode):
    """Counts each operation that starts a kernel: all of them in `eager`, products in `fused`."""

    def __init__(self) -> None:
        super().__init__()
        self.eager, self.fused, self.pausing = Work(), Work(), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if self.pausing or view or func.overloadpacket.__name__ in _NO_KERNEL:
            return out
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        product = flop_registry.get(func.overloadpacket)
        flops = product(*args, **(kwargs or {}), out_val=out) if product else 0.0
        moved = _size(*operands, *results)
        self.eager.add(flops, moved)
        if product:
            self.fused.add(flops, moved)
        return out

    def kernel(self, flops: float, moved: float) -> None:
        """Counts one kernel that torch has only on GPUs."""
        self.eager.add(flops, moved)
        self.fused.add(flops, moved)

    def as_one(self, function: Callable[..., Any], reads: int) -> Callable[..., Any]:
        """Returns a function whose operations count as one kernel that reads its first argument `reads` times."""

        def counted(first: Tensor, *rest: Any) -> Any:
            self.pausing = True
            out = function(first, *rest)
            self.pausing = False
            others = [x for x in tree_leaves((rest, out)) if isinstance(x, Tensor)]
            self.kernel(0.0, reads * _size(first) + _size(*others))
            return out

        return counted


def layer_work(shape: DecoderShape, row: Row, *, recomputed: bool) -> tuple[Work, Work]:
    """Returns the work of a layer, forward and backward, in a row: eager and fused."""
    tokens = row.tokens
    products = 4.0 * row.pairs * shape.heads * shape.head_dim
    with META:
        layer = build_decoder(shape, recomputed).to(DTYPE).layers[0]
        for p in layer.parameters():
            master = nn.Parameter(torch.empty_like(p, dtype=torch.float32))
            master.grad = torch.empty_like(master)
            p.register_post_accumulate_grad_hook(TrainedWeights._collector(master))
        cos = torch.empty(tokens, 1, shape.head_dim, dtype=DTYPE)
        x = torch.empty(1, tokens, shape.embed_dim, dtype=DTYPE, requires_grad=True)
    counter = Counter()

    class Attention(torch.autograd.Function):
        """flex_attention by its kernels: one forward, two backward, which compute the scores again."""

        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            ctx.save_for_backward(q, k, v)
            counter.kernel(products, _size(q, k, v, q))
            return torch.empty_like(q)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Tensor, ...]:
            q, k, v = ctx.saved_tensors
            counter.kernel(0.0, _size(q, q))
            counter.kernel(2.5 * products, _size(q, k, v, q, q) + _size(q, k, v))
            return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    inputs = AttentionInputs(cos, cos, None)  # pyright: ignore[reportArgumentType]
    with patch.object(TreeSelfAttention, "attend", lambda _, q, k, v, tree: Attention.apply(q, k, v)), counter:
        out = layer(x, mask=inputs)
        out.backward(torch.empty_like(out))
    return counter.eager, counter.fused


def head_work(shape: DecoderShape, row: Row, *, compiled: bool) -> Work:
    """Returns the work of the head and of its log-probabilities, forward and backward, in a row."""
    count = row.branches * row.completion
    with META:
        hidden = torch.empty(count, shape.embed_dim, dtype=DTYPE, requires_grad=True)
        weight = torch.empty(shape.vocab_size, shape.embed_dim, dtype=DTYPE, requires_grad=True)
        targets, grad = torch.empty(count, dtype=torch.int64), torch.empty(count)
    counter = Counter()
    kernels = counter.as_one(head._statistics, 2), counter.as_one(head._gradient, 1)
    with patch.object(head, "_compiled", lambda: kernels), counter:
        logprobs, _ = head.token_statistics(hidden, weight, targets, 1.0, CHUNK, compiled=compiled)
        logprobs.backward(grad)
    return counter.eager
