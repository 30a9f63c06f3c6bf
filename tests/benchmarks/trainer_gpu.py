"""The trainer on a GPU: tokens a second, utilisation and memory, its tree mask beside a dense one.

python -m tests.benchmarks.trainer_gpu [--shape NAME ...] [--mask NAME ...] [--compile both] [--rows N] [--json]
python -m tests.benchmarks.trainer_gpu --shape tiny --device cpu     # the same code, to see that it runs

Random weights of Qwen2.5's shapes, drawn on the device, so that no checkpoint is needed; one process. A step takes
packed rows of one group each: a prompt and its completions. `tree` is how the trainer attends on that device
(flex_attention with a block mask on CUDA, flash kernels in two parts on the CPU), `dense` torch's own attention under
a full [N, N] mask, in layers that are not compiled. Both must find the same gradient.

Utilisation is of forward and backward, the best of several, against the bf16 matmul peak of the same device; only
FLOPs that a tree cannot do without count, so recomputed layers do not. Where weights, masters, AdamW's moments and
gradients do not fit on the device (18 bytes a parameter), forward and backward run without masters and optimizer,
and the table says so. Without a CUDA device the status is 2.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from stages.models.shape import DecoderShape, read_shape
from stages.training.job import OptimizerConfig
from stages.training.model import attention
from stages.training.model import policy as model
from stages.training.model.placement import compute_dtype, place_policy
from stages.training.trainable import EVERYTHING
from stages.training.worker_group.hardware import TrainHardware
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.processes import own_memory
from tests.support.trainer_work import Bench, TimedWeights, draw_groups, matmul_peak, needed_flops, save_batch

SAME_GRADIENT = 0.01
"""Relative difference of two gradients' norms up to which they count as the same; without the prompts it is 0.027."""
BYTES_A_PARAMETER, OTHER_BYTES = 18, 32 << 30
PEAK_SIZES = {"cuda": (4096, 8192, 16384), "cpu": (512, 1024)}


@dataclass(frozen=True)
class Shape:
    """A model by the numbers of its config.json, the groups it is measured on, in tokens, and memory switches."""

    config: dict[str, Any]
    prompt: int = 1024
    branches: int = 16
    completion: int = 512
    checkpointing: bool = False


SHAPES = {
    "qwen2.5-0.5b": Shape({
        "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    }),
    "qwen2.5-7b": Shape({
        "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
    }, checkpointing=True),
    "tiny": Shape({
        "vocab_size": 400, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
    }, prompt=44, branches=8, completion=8),
}  # fmt: skip


def write_config(folder: Path, shape: Shape) -> Path:
    """A model folder that holds a config.json and nothing else."""
    folder.mkdir()
    common = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32_768}
    (folder / "config.json").write_text(json.dumps(common | shape.config))
    return folder


class RandomWeights(TimedWeights):
    """Weights drawn on the device instead of read from a folder."""

    def load_checkpoint(self, folder: Path) -> None:
        torch.manual_seed(0)
        with torch.no_grad():
            for name, p in self.masters.items():
                p.fill_(1.0) if name.endswith("scale") else p.normal_(0.0, 0.02)
        self.reset_optimizer()
        self.refresh()


class WeightsAlone(RandomWeights):
    """The policy with its gradients, without masters and optimizer: its step only measures and drops the gradients."""

    def __init__(self, shape: DecoderShape, hardware: TrainHardware, device: torch.device, sharded: bool) -> None:
        self.shape, self.device, self.sharded, self.trainable = shape, device, sharded, EVERYTHING
        self.dtype = compute_dtype(hardware, shape)
        self.policy = place_policy(shape, hardware, device, sharded, self.dtype)
        self.masters = dict(self.policy.named_parameters())

    def reset_optimizer(self) -> None:
        """There is none."""

    def step(self, config: OptimizerConfig, learning_rate: float, norm: Tensor) -> None:
        self.policy.zero_grad(set_to_none=True)
        self.optimizer_s = self.norm_s


def _dense_tree(segment_ids: Tensor, parent_ids: Tensor, device: torch.device, window: None = None) -> Tensor:
    """[N, N] bool: the pairs that attend."""
    segments, parents = segment_ids.to(device), parent_ids.to(device)
    index = torch.arange(segments.numel(), device=device)
    related = (segments[:, None] == segments) | (parents[:, None] == segments)
    return related & (index[:, None] >= index)


def _attend(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Tensor, scale: float, enable_gqa: bool) -> Tensor:
    """[1, H, N, D]; keys are repeated because torch's fused kernel with a mask knows no groups of heads."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=block_mask, scale=scale)


@contextmanager
def dense_mask() -> Iterator[None]:
    """The trainer attends under a dense mask, on any device."""
    with patch.object(model, "attention_tree", _dense_tree), patch.object(attention, "_flex", lambda: _attend):
        yield


MASKS = {"tree": nullcontext, "dense": dense_mask}
COMPILED = {"eager": (False,), "compiled": (True,), "both": (False, True)}


def fits(shape: DecoderShape, device: torch.device) -> bool:
    """Whether everything that a whole optimizer step keeps has room on the device."""
    gc.collect()
    if device.type != "cuda":
        return True
    torch.cuda.empty_cache()
    with torch.device("meta"):
        policy = model.Policy(shape, activation_checkpointing=False, chunk_tokens=1)
    parameters = sum(p.numel() for p in policy.parameters())
    return BYTES_A_PARAMETER * parameters + OTHER_BYTES < torch.cuda.mem_get_info(device)[0]


def start_of_peak(device: torch.device) -> int:
    """Forgets the peak so far; bytes held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes(device)


def peak_bytes(device: torch.device) -> int:
    """The most bytes held since then."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return own_memory("VmHWM")


def measure(name: str, mask: str, compiled: bool, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Steps of one shape under one mask."""
    shape, device = SHAPES[name], torch.device(options.device)
    if options.activation_checkpointing is not None:
        shape = replace(shape, checkpointing=options.activation_checkpointing)
    hardware = TrainHardware(device=options.device, activation_checkpointing=shape.checkpointing, compile=compiled)
    folder = write_config(folder / f"{name}-{mask}-{'compiled' if compiled else 'eager'}", shape)
    whole = fits(read_shape(folder), device) if options.optimizer is None else options.optimizer
    bench = Bench(folder, hardware, RandomWeights if whole else WeightsAlone)
    groups = draw_groups(options.rows, shape.prompt, shape.branches, shape.completion, bench.shape.vocab_size)
    batch = save_batch(groups, folder / "batch.safetensors")
    start_bytes = start_of_peak(device)
    before = start_bytes if device.type == "cpu" else 0  # a GPU's memory holds nothing but this
    with MASKS[mask]():
        row = bench.measure(batch, options.repeats)
    seconds = row["best_forward_backward_s"]
    return {
        "shape": name, "mask": mask, "compiled": compiled, "whole_step": whole,
        "activation_checkpointing": shape.checkpointing,
        "row_tokens": groups[0].size_tokens, **row, "tokens_per_s": row["tokens"] / seconds,
        "flops_per_s": needed_flops(bench.shape, groups) / seconds, "peak_bytes": peak_bytes(device) - before,
    }  # fmt: skip


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """Whether the masks of each shape, eager and compiled, found gradients of the same norm."""
    norms: dict[str, list[float]] = {}
    for row in rows:
        norms.setdefault(row["shape"], []).append(row["grad_norm"])
    name = "gradient norms of the masks, largest over smallest"
    return [Bar.at_most(f"{shape}: {name}", max(pair) / min(pair), 1 + SAME_GRADIENT) for shape, pair in norms.items()]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["qwen2.5-0.5b", "qwen2.5-7b"])
    parser.add_argument("--mask", nargs="+", choices=MASKS, default=list(MASKS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compile", choices=COMPILED, default="eager", help="the tree mask only")
    parser.add_argument("--rows", type=int, default=2, help="packed rows of a step")
    parser.add_argument("--repeats", type=int, default=5, help="measured steps, of which the best counts")
    parser.add_argument("--activation-checkpointing", action=argparse.BooleanOptionalAction, help="default: 7b only")
    parser.add_argument("--optimizer", action=argparse.BooleanOptionalAction, help="default: where it fits")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --shape tiny --device cpu runs the same code", file=sys.stderr)
        return 2
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    peaks, rows = [matmul_peak(PEAK_SIZES[device.type], device=device)], list[dict[str, Any]]()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory(prefix="bench-trainer-gpu-") as folder:
        for shape in options.shape:
            for mask, compiled in product(options.mask, COMPILED[options.compile]):
                if compiled and mask == "dense":
                    continue
                progress(f"{shape}, {mask}{', compiled' if compiled else ''} ...")
                rows.append(measure(shape, mask, compiled, Path(folder), options))
                peaks.append(matmul_peak(PEAK_SIZES[device.type], device=device))
    torch.distributed.destroy_process_group()
    for row in rows:
        row["utilisation"] = row["flops_per_s"] / max(peaks)
    report = {"device": name, "matmul_peak": max(peaks), "peaks": peaks, "rows": rows}
    tell(report, bars(rows), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
