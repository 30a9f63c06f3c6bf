"""Layers are compiled on GPUs only, and only if the profile asks for it; tests/gpu has what they compute."""

from pathlib import Path

import pytest
import torch

from stages.models.shape import read_shape
from stages.training.model.placement import place_policy
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import ARCHITECTURES
from tests.support.trees import save_model


@pytest.mark.parametrize(
    ("asked", "device", "compiles"), [(True, "cuda", True), (True, "cpu", False), (False, "cuda", False)]
)
def test_gpus_compile_on_request(asked: bool, device: str, compiles: bool) -> None:
    assert TrainHardware(compile=asked).compiles(device) == compiles
    assert not TrainHardware().compile


def test_layers_on_a_cpu_are_not_compiled(tmp_path: Path) -> None:
    save_model(tmp_path, ARCHITECTURES["qwen3"][0])
    hardware = TrainHardware(compute_dtype="fp32", compile=True)
    policy = place_policy(read_shape(tmp_path), hardware, torch.device("cpu"), False, torch.float32)
    assert not any("forward" in vars(layer) for layer in policy.decoder.layers)
