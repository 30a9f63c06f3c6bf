"""Whether a benchmark can run on the device that it was asked for."""

import shutil
import subprocess
import sys

FREE_MIB = 1024
"""Memory of a GPU that nothing computes on, at most."""


def lacks_gpu(device: str, instead: str) -> bool:
    """Returns whether a GPU is asked for and the machine has none, and then says what to do instead."""
    lacks = device == "cuda" and not shutil.which("nvidia-smi")
    if lacks:
        print(f"no CUDA device here: no nvidia-smi; --device cpu {instead}", file=sys.stderr)
    return lacks


def gpu_is_in_use() -> bool:
    """Returns whether more than a driver's own memory of the first GPU is in use, and then says so."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    used_mib = int(subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout)
    if used_mib > FREE_MIB:
        print(f"the GPU computes for others: {used_mib} MiB in use; times would be of both: end them", file=sys.stderr)
    return used_mib > FREE_MIB


def gpu_count() -> int:
    """Returns the number of GPUs that nvidia-smi lists; 0 without it."""
    if not shutil.which("nvidia-smi"):
        return 0
    return len(subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines())
