"""Speed of this machine on all cores, to compute shares of it: `python -m tests.benchmarks.machine_speed`.

Matrix products of 1024 x 1024 in each compute type (`stages.hardware.matmul`, which a run times on one core only), and
STREAM's triad, `a = b + s * c` in fp32: two reads and a write a number. Arrays are twice as large as the last cache (at
least 256 MiB, at most an eighth of the free memory). The best of several counts.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.bars import parser_of, tell

REPEATS = 7
LEAST_BYTES = 256 * 2**20
HERE = Path(__file__).parents[2]


def measured_machine() -> dict[str, Any]:
    """Returns cores, GFLOP/s by compute type and GB/s of memory, measured in a child."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.machine_speed", "--json"]
    speed = json.loads(subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, check=True).stdout)
    del speed["bars"]
    return speed


def cache_bytes() -> int:
    """Returns the size of the last cache; 0 where Linux does not tell."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().removesuffix("K")) * 1024 for size in sizes), default=0)


def triad_bandwidth() -> float:
    """Returns the best rate of the triad, bytes a second."""
    import torch

    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(max(LEAST_BYTES, 2 * cache_bytes()), free // 8)
    a, b, c = (torch.ones(size // 4) for _ in range(3))
    best = 0.0
    for _ in range(REPEATS):
        started = time.perf_counter()
        torch.add(b, c, alpha=3.0, out=a)
        best = max(best, 3 * size / (time.perf_counter() - started))
    return best


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    import torch

    from stages.hardware.matmul import gflops

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    speeds = {"bf16": gflops(torch.bfloat16), "fp32": gflops(torch.float32)}
    speed = {"cores": cores, "matmul_gflops": speeds, "memory_gb_per_s": triad_bandwidth() / 1e9}
    tell(speed, [], as_json=options.json)


if __name__ == "__main__":
    main()
