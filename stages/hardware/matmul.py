"""Times matrix products on one CPU core: prints GFLOP/s by compute type as JSON.

`stages.hardware.compute_type` runs it as a child.

It uses one core, because with several threads that wait for each other the result depends on other programs.
"""

import json
import time

import torch

SIZE = 1024
FEW_ROWS = 64
ENOUGH_S = 0.05
REPEATS = 20


def gflops(dtype: torch.dtype) -> float:
    """Returns the best rate of products with a SIZE x SIZE matrix, measured in about 50 ms.

    With a type that the CPU emulates, a whole product may take seconds, so then only `FEW_ROWS` rows are measured.
    """
    a, b = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    torch.mm(a[:1], b)  # creates the kernel
    few_s = _best_s(a[:FEW_ROWS], b)
    if few_s > ENOUGH_S:
        return _gflop(FEW_ROWS) / few_s
    return _gflop(SIZE) / _best_s(a, b)


def _best_s(a: torch.Tensor, b: torch.Tensor) -> float:
    best, began = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        started = time.perf_counter()
        torch.mm(a, b)
        ended = time.perf_counter()
        best = min(best, ended - started)
        if ended - began > ENOUGH_S:
            break
    return best


def _gflop(rows: int) -> float:
    return 2 * rows * SIZE * SIZE / 1e9


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"bf16": gflops(torch.bfloat16), "fp32": gflops(torch.float32)}))
