"""Packages in an environment of their own, which borrows our torch."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

_UNREACHABLE = ("error sending request", "dns error", "failed to fetch", "failed to download", "connect")


def isolated_python(folder: Path, *requirements: str) -> Path:
    """Returns the Python of a new environment with packages; skips the test where they cannot be installed.

    The packages and what they require stand before ours on the path. Both sides compute with the same torch, or equal
    bits would say nothing.

    Args:
        folder: Folder to make the environment in.
        requirements: The packages and their releases, as pip reads them.
    """
    if (uv := shutil.which("uv")) is None:
        pytest.skip(f"uv, which makes the environment of {requirements}, is not installed")
    overrides, environment = folder / "overrides.txt", folder / "venv"
    overrides.write_text("torch; sys_platform == 'never'\n")
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [uv, "pip", "install", "-q", "--python", str(python), "--overrides", str(overrides), *requirements]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        if any(word in done.stderr.lower() for word in _UNREACHABLE):
            pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[0]}")
        pytest.fail(done.stderr)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
