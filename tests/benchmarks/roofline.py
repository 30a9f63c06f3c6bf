"""What a training step of one packed row needs at least, beside what an H100 took: computed, not measured.

python -m tests.benchmarks.roofline [--json]        # 10 seconds on any CPU

The trainer's own layer and head run on tensors without data, and each operation is counted: FLOPs, bytes that it reads
and writes, launches. An operation takes at least the longer of FLOPs / matmul peak and bytes / memory bandwidth; the
least time of a part is the sum over its operations. `eager` counts every operation as a kernel. `fused` counts products
and attention alone, with one kernel between the head's logits and its loss: no fusion could do with less. Measured
times are those of docs/gpu.md, for the same rows and shapes, eager.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from stages.models.shape import DecoderShape, read_shape
from stages.training.model import head
from stages.training.model.attention import AttentionInputs, TreeSelfAttention
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import build_decoder
from tests.benchmarks.trainer_gpu import SHAPES, Shape, write_config
from tests.support.bars import add_json_option, tell

PEAK_FLOPS, BANDWIDTH = 795e12, 3.35e12
"""Of an H100 80GB HBM3: measured rate of bf16 products, and bytes a second by its data sheet."""
MEASURED_TOKENS_A_SECOND = {"qwen2.5-0.5b": 47_100, "qwen2.5-7b": 8_750}
CHUNK = 2048
META, DTYPE = torch.device("meta"), torch.bfloat16
_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}


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


def layer_work(shape: DecoderShape, sizes: Shape) -> tuple[Work, Work]:
    """Returns the work of a layer, forward and backward, in a row: eager and fused."""
    tokens = sizes.prompt + sizes.branches * sizes.completion
    causal = [n * (n + 1) // 2 for n in (sizes.prompt, sizes.completion)]
    pairs = causal[0] + sizes.branches * (sizes.prompt * sizes.completion + causal[1])
    products = 4.0 * pairs * shape.heads * shape.head_dim
    with META:
        layer = build_decoder(shape, sizes.checkpointing).to(DTYPE).layers[0]
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


def head_work(shape: DecoderShape, sizes: Shape, *, compiled: bool) -> Work:
    """Returns the work of the head and of its log-probabilities, forward and backward, in a row."""
    count = sizes.branches * sizes.completion
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


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Returns the work of a row of one shape, and the times."""
    sizes = SHAPES[name]
    shape = read_shape(write_config(folder / name, sizes))
    eager, fused = (work.times(shape.layers) for work in layer_work(shape, sizes))
    steps, compiled = (head_work(shape, sizes, compiled=switch) for switch in (False, True))
    tokens = sizes.prompt + sizes.branches * sizes.completion
    measured = tokens / MEASURED_TOKENS_A_SECOND[name]
    parts = {
        "layers, eager": eager, "head, eager": steps, "both, eager": eager.plus(steps),
        "layers, fused": fused, "head, compiled": compiled, "both, fused": fused.plus(compiled),
    }  # fmt: skip
    rows = {part: asdict(work) | {"of_measured": work.seconds / measured} for part, work in parts.items()}
    return {"shape": name, "tokens": tokens, "recomputed": sizes.checkpointing, "measured_s": measured, "parts": rows}


def show(report: dict[str, Any], console: Console) -> None:
    """Prints a table a shape."""
    for shape in report["shapes"]:
        again = ", layers recomputed" if shape["recomputed"] else ""
        title = (
            f"{shape['shape']}, a row of {shape['tokens']:,} tokens{again}: computed; an H100 took "
            f"{shape['measured_s'] * 1e3:,.0f} ms (eager)"
        )
        table = Table(title=title, title_justify="left")
        for place, words in enumerate(("part", "TFLOP", "GB", "launches", "FLOPs ms", "bytes ms", "least ms", "share")):
            table.add_column(words, justify="right" if place else "left")
        for part, row in shape["parts"].items():
            table.add_row(
                part, f"{row['flops'] / 1e12:.1f}", f"{row['bytes'] / 1e9:.1f}", f"{row['launches']:,}",
                f"{row['flops'] / PEAK_FLOPS * 1e3:.1f}", f"{row['bytes'] / BANDWIDTH * 1e3:.1f}",
                f"{row['seconds'] * 1e3:.1f}", f"{row['of_measured']:.0%}",
            )  # fmt: skip
        console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-roofline-") as folder:
        shapes = [measure(name, Path(folder)) for name in MEASURED_TOKENS_A_SECOND]
    report = {"peak_flops": PEAK_FLOPS, "bandwidth": BANDWIDTH, "shapes": shapes}
    tell(report, [], lambda: show(report, Console(width=120)), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
