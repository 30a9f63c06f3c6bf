"""Saving shows progress all the time, cuts large weights into files, and writes equal states as equal bytes."""

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.models.shape import read_shape
from stages.models.tensors import WEIGHTS_INDEX
from stages.training.checkpointing.checkpoint import write_checkpoint
from stages.training.job import OptimizerConfig, TrainHardware
from stages.training.model.master_weights import TrainedWeights
from stages.training.worker_group.job_queue import JobQueue
from tests.support.policies import load_policy
from tests.support.trees import save_model

pytestmark = pytest.mark.usefixtures("world_of_one")


def test_saving_and_loading_beat_with_each_tensor(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=True)
    queue, beats = JobQueue(tmp_path), []

    def beat() -> None:
        queue.beat(0)
        beats.append(queue.last_beat_s())

    cpu, hardware = torch.device("cpu"), TrainHardware(compute_dtype="fp32")
    weights = TrainedWeights(read_shape(tmp_path / "model"), hardware, cpu, sharded=False, beat=beat)
    tensors = len(weights.masters)

    def beats_of(action: str) -> int:
        count = len(beats)
        {
            "load_checkpoint": lambda: weights.load_checkpoint(tmp_path / "model"),
            "save_state": lambda: weights.save_state(tmp_path / "state"),
            "load_state": lambda: weights.load_state(tmp_path / "state"),
            "save_checkpoint": lambda: weights.save_checkpoint(tmp_path / "model", tmp_path / "new"),
            "save_average": lambda: weights.save_average(tmp_path / "model", 0.5, tmp_path / "average"),
        }[action]()
        return len(beats) - count

    assert beats_of("load_checkpoint") == tensors
    for p in weights.masters.values():
        p.grad = torch.ones_like(p)
    weights.step(OptimizerConfig(), 0.01)
    assert beats_of("save_state") >= 3 * tensors, "weights and both moments"
    assert beats_of("load_state") >= 3 * tensors
    assert beats_of("save_checkpoint") == tensors + 1
    assert beats_of("save_average") == 2 * tensors + 1
    assert time.time() - beats[-1] < 60.0

    weights.save_state(tmp_path / "again")
    files = sorted(path.name for path in (tmp_path / "state").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all((tmp_path / "state" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


def test_large_weights_are_cut_into_files(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=False)
    policy, beats = load_policy(tmp_path / "model"), []
    write_checkpoint(
        tmp_path / "model", tmp_path / "cut", dict(policy.named_parameters()),
        file_bytes=10_000, beat=lambda: beats.append(1),
    )  # fmt: skip
    files = sorted((tmp_path / "cut").glob("*.safetensors"))
    assert len(files) == len(beats) > 2 and (tmp_path / "cut" / WEIGHTS_INDEX).exists()
    assert all(path.stat().st_size < 13_000 for path in files)
    for name, parameter in load_policy(tmp_path / "cut").named_parameters():
        assert torch.equal(parameter, dict(policy.named_parameters())[name])
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        first, second = (
            AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=torch.float32)(tokens).logits
            for folder in ("model", "cut")
        )
    assert torch.equal(first, second)
