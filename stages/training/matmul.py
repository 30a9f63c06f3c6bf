"""Times matrix products on the CPU: prints GFLOP/s by compute type as JSON. `stages.machine` runs it as a child."""

import json
import time

import torch

SIZE = 1024
ENOUGH_S = 0.05
REPEATS = 5


def gflops(dtype: torch.dtype) -> float:
    """Returns the best rate of products of SIZE x SIZE matrices, at least one after the warm-up."""
    a, b = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    best, began = float("inf"), time.perf_counter()
    a[:64] @ b  # creates the kernel without a whole product, which takes seconds where bf16 is emulated
    for _ in range(REPEATS):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
        if time.perf_counter() - began > ENOUGH_S * REPEATS:
            break
    return 2 * SIZE**3 / best / 1e9


if __name__ == "__main__":
    print(json.dumps({"bf16": gflops(torch.bfloat16), "fp32": gflops(torch.float32)}))
