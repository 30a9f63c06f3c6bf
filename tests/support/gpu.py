"""Whether a benchmark can run on the device that it was asked for."""

import shutil
import subprocess
import sys


def lacks_gpu(device: str, instead: str) -> bool:
    """Returns whether a GPU is asked for and the machine has none, and then says what to do instead."""
    lacks = device == "cuda" and not shutil.which("nvidia-smi")
    if lacks:
        print(f"no CUDA device here: no nvidia-smi; --device cpu {instead}", file=sys.stderr)
    return lacks


def gpu_count() -> int:
    """Returns the number of GPUs that nvidia-smi lists; 0 without it."""
    if not shutil.which("nvidia-smi"):
        return 0
    return len(subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines())
