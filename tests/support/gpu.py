"""Whether a benchmark can run on the device that it was asked for."""

import shutil
import sys


def lacks_gpu(device: str, instead: str) -> bool:
    """Returns whether a GPU is asked for and the machine has none, and then says what to do instead."""
    lacks = device == "cuda" and not shutil.which("nvidia-smi")
    if lacks:
        print(f"no CUDA device here: no nvidia-smi; --device cpu {instead}", file=sys.stderr)
    return lacks
