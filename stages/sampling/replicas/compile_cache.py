"""The folder in which engines on GPUs keep what they compiled, so that a later run starts without compiling."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 8 << 30
_KEPT_S = 24 * 3600.0
"""An entry that changed within this time may be in use."""


def folder() -> Path:
    """Returns the folder, which `VLLM_CACHE_ROOT` may name; it is one of this user's caches otherwise."""
    if named := _named():
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "deerstalker" / "vllm"


def environment() -> dict[str, str]:
    """Returns the variables by which vLLM, torch and triton use the folder; a default of torch is below TMPDIR."""
    root = folder()
    return {
        "VLLM_CACHE_ROOT": str(root),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
        "TRITON_CACHE_DIR": str(root / "triton"),
    }


def largest_bytes() -> int | None:
    """Returns the size that the folder may have; None for one that `VLLM_CACHE_ROOT` names, which others use too."""
    return None if _named() else LIMIT_BYTES


def prepare() -> None:
    """Makes the folder, for this user only, and removes the oldest entries above its limit.

    Entries of the last day stay, whatever their size.
    """
    root, limit_bytes = folder(), largest_bytes()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if limit_bytes is None:
        return
    entries = sorted((_changed(entry), entry) for entry in root.glob("*/*"))
    sizes = {entry: size_bytes(entry) for _, entry in entries}
    excess = sum(sizes.values()) - limit_bytes
    for changed, entry in entries:
        if excess <= 0 or changed > time.time() - _KEPT_S:
            break
        shutil.rmtree(entry, ignore_errors=True)
        excess -= sizes[entry]


def size_bytes(entry: Path) -> int:
    """Returns the size of all files below a folder; another process may remove some meanwhile."""
    total = 0
    for path in entry.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _named() -> str | None:
    return os.environ.get("VLLM_CACHE_ROOT")


def _changed(entry: Path) -> float:
    with suppress(OSError):
        return entry.stat().st_mtime
    return 0.0
