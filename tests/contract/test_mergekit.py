"""Our merges and those of mergekit, in an environment of its own, are equal bit by bit."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.models.merging.config import MergeConfig
from stages.models.merging.folders import MergeJob, merge_folders
from tests.support.specialists import write_specialist

RELEASE = "mergekit==0.1.5"
UNREACHABLE = ("error sending request", "dns error", "failed to fetch", "failed to download", "connect")
WEIGHT, DENSITY = 0.7, 0.3


@pytest.fixture(scope="module")
def mergekit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `mergekit-yaml`. It and its packages stand in an environment of their own, which borrows our torch.

    mergekit is under the LGPL and needs other releases of pydantic and click, so it never enters our environment. Both
    sides compute with the same torch, or equal bits would say nothing.
    """
    if (uv := shutil.which("uv")) is None:
        pytest.skip("uv, which makes the environment of mergekit, is not installed")
    folder = tmp_path_factory.mktemp("mergekit") / "venv"
    overrides = folder.with_name("overrides.txt")
    overrides.write_text("torch; sys_platform == 'never'\n")
    run([uv, "venv", "-q", "--python", sys.executable, str(folder)])
    python = folder / "bin" / "python"
    install = [uv, "pip", "install", "-q", "--python", str(python), "--overrides", str(overrides), RELEASE]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        if any(word in done.stderr.lower() for word in UNREACHABLE):
            pytest.skip(f"PyPI cannot be reached: {done.stderr.strip().splitlines()[0]}")
        pytest.fail(done.stderr)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")  # after its own packages on the path
    return folder / "bin" / "mergekit-yaml"


def run(command: list[str], **environment: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-2000:]


def config_of(method: str, models: Mapping[str, Path], base: Path | None) -> str:
    """What mergekit calls the same merge."""
    parameters = {"average": "{weight: 1}", "task_arithmetic": f"{{weight: {WEIGHT}}}"}
    parameters["ties"] = f"{{weight: 1, density: {DENSITY}}}"
    lines = [f"merge_method: {'linear' if method == 'average' else method}", "dtype: float32", "models:"]
    for folder in [*models.values(), *([base] if base and method == "arcee_fusion" else [])]:
        lines.append(f"  - model: {folder}")
        if method in parameters:
            lines.append(f"    parameters: {parameters[method]}")
    lines += [f"base_model: {base}"] if base else []
    lines += [f"parameters: {{lambda: {WEIGHT}}}"] if method == "ties" else []
    return "\n".join(lines) + "\n"


@pytest.mark.long
@pytest.mark.parametrize("method", ["arcee_fusion", "average", "task_arithmetic", "ties"])
def test_a_merged_model_is_that_of_mergekit_bit_by_bit(mergekit: Path, tmp_path: Path, method: str) -> None:
    folders = [write_specialist(tmp_path / f"model{seed}", seed, torch.float32) for seed in range(3)]
    base = None if method == "average" else folders[0]
    models = {"arcee_fusion": folders[1:2], "average": folders}.get(method, folders[1:])
    described, theirs, ours = tmp_path / "merge.yaml", tmp_path / "theirs", tmp_path / "ours"
    described.write_text(config_of(method, {folder.name: folder for folder in models}, base))
    run([str(mergekit), str(described), str(theirs)], HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    ours.mkdir()
    config = MergeConfig.model_validate({"method": method, "weight": WEIGHT, "density": DENSITY})
    merge_folders(MergeJob(config=config, models=models, base=base, out=ours, facts=tmp_path / "facts.json"))
    expected, merged = load_file(theirs / "model.safetensors"), load_file(ours / "model.safetensors")
    assert set(expected) == set(merged)
    started = load_file(folders[0] / "model.safetensors")
    assert any(not torch.equal(merged[name], tensor) for name, tensor in started.items())
    for name, tensor in merged.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor.view(torch.int32), expected[name].view(torch.int32)), name
