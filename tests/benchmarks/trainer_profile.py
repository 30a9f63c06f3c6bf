"""Where the time of an optimizer step goes, by torch's profiler."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::matmul", "aten::linear")
CASTS = ("aten::copy_", "aten::_to_copy", "aten::to")


def time_shares(step: Callable[[], object]) -> dict[str, float]:
    """Runs a step under the profiler; returns the share of its wall time by kind of work, largest first."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        step()
        wall_us = 1e6 * (time.perf_counter() - started)
    shares: defaultdict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        shares[_kind(event)] += event.self_cpu_time_total / wall_us
    shares["Python, between operators"] = max(0.0, 1.0 - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _kind(event: Any) -> str:
    name, within = event.name, ""
    while event is not None:
        within += f" {event.name}"
        event = event.cpu_parent
    if "weights.step" in within:
        return "optimizer"
    if "TreeAttention" in within:
        return "attention kernels" if "flash_attention" in name else "attention, gathers and merges"
    if name in MATMULS:
        return "head, matmuls" if "TokenStatistics" in within else "matmuls of the layers"
    if "TokenStatistics" in within:
        return "head, softmax"
    return "casts and copies" if name in CASTS else "norms, activations, rest"
