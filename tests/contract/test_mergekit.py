"""Our merges and those of mergekit, in an environment of its own, are equal bit by bit."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.models.merging.config import MergeConfig
from stages.models.merging.folders import MergeJob, merge_folders
from tests.support.isolated import isolated_python
from tests.support.specialists import write_specialist

RELEASE = "mergekit==0.1.5"
WEIGHT, DENSITY = 0.7, 0.3
METHODS = ("arcee_fusion", "average", "task_arithmetic", "ties")
MERGE_ALL = """
import sys
from mergekit.scripts.run_yaml import main
for described in sys.argv[1:]:
    main([described, described.removesuffix(".yaml")], standalone_mode=False)
"""
"""What the program `mergekit-yaml` does, for several files: its imports take 9 s of CPU."""


@pytest.fixture(scope="module")
def mergekit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of mergekit, which is under the LGPL and needs other releases of pydantic and click than we do."""
    return isolated_python(tmp_path_factory.mktemp("mergekit"), RELEASE)


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


def inputs_of(method: str, folder: Path) -> tuple[list[Path], Path | None]:
    """Models to merge, and the base of the methods that have one."""
    folders = [folder / f"model{seed}" for seed in range(3)]
    models = {"arcee_fusion": folders[1:2], "average": folders}.get(method, folders[1:])
    return models, None if method == "average" else folders[0]


@pytest.fixture(scope="module")
def merged(mergekit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three models, and what mergekit makes of them in folders named by method."""
    folder = tmp_path_factory.mktemp("merged")
    for seed in range(3):
        write_specialist(folder / f"model{seed}", seed, torch.float32)
    files = [folder / f"{method}.yaml" for method in METHODS]
    for method, file in zip(METHODS, files, strict=True):
        models, base = inputs_of(method, folder)
        file.write_text(config_of(method, {model.name: model for model in models}, base))
    run([str(mergekit), "-c", MERGE_ALL, *map(str, files)], HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    return folder


@pytest.mark.release
@pytest.mark.parametrize("method", METHODS)
def test_a_merged_model_is_that_of_mergekit_bit_by_bit(merged: Path, tmp_path: Path, method: str) -> None:
    models, base = inputs_of(method, merged)
    config = MergeConfig.model_validate({"method": method, "weight": WEIGHT, "density": DENSITY})
    merge_folders(MergeJob(config=config, models=models, base=base, out=tmp_path, facts=tmp_path / "facts.json"))
    expected = load_file(merged / method / "model.safetensors")
    ours = load_file(tmp_path / "model.safetensors")
    assert set(expected) == set(ours)
    started = load_file(merged / "model0" / "model.safetensors")
    assert any(not torch.equal(ours[name], tensor) for name, tensor in started.items())
    for name, tensor in ours.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor.view(torch.int32), expected[name].view(torch.int32)), name
