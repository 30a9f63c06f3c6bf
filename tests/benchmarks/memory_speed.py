"""Memory bandwidth of this machine, as the child of a benchmark: prints bytes a second as JSON.

STREAM's triad, `a = b + s * c` in fp32 on all cores; two reads and a write a number. Arrays are twice as large as the
last cache (at least 256 MiB, at most an eighth of the free memory). The best of several counts.
"""

import json
import os
import time
from pathlib import Path

import torch

REPEATS = 7
LEAST_BYTES = 256 * 2**20


def cache_bytes() -> int:
    """Returns the size of the last cache; 0 where Linux does not tell."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().removesuffix("K")) * 1024 for size in sizes), default=0)


def triad_bandwidth() -> float:
    """Returns the best rate of the triad, bytes a second."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(max(LEAST_BYTES, 2 * cache_bytes()), free // 8)
    a, b, c = (torch.ones(size // 4) for _ in range(3))
    best = 0.0
    for _ in range(REPEATS):
        started = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)
        best = max(best, 3 * size / (time.perf_counter() - started))
    return best


if __name__ == "__main__":
    print(json.dumps({"bytes_per_s": triad_bandwidth()}))
