"""Imitates a CPU older than this one, for the processes that a test or a benchmark starts."""

import os
from pathlib import Path

_ATEN = {"AVX2": "avx2", "AVX512_CORE": "avx512", "AVX512_CORE_BF16": "avx512"}
_MKL = {"AVX2": "AVX2", "AVX512_CORE": "AVX512", "AVX512_CORE_BF16": "AVX512"}


def older_cpu(level: str) -> dict[str, str]:
    """Returns this process's environment with the variables that imitate an x86 CPU of a level.

    oneDNN, ATen and MKL read a variable each; vLLM asks torch, whose answers `older_cpu/sitecustomize.py` changes.

    Args:
        level: "AVX2" (most laptops), "AVX512_CORE" (AVX-512 without bf16) or "AVX512_CORE_BF16" (without AMX).
    """
    folder = str(Path(__file__).with_name("older_cpu"))
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    levels = {"ONEDNN_MAX_CPU_ISA": level, "ATEN_CPU_CAPABILITY": _ATEN[level], "MKL_ENABLE_INSTRUCTIONS": _MKL[level]}
    return {**os.environ, **levels, "PYTHONPATH": path}
