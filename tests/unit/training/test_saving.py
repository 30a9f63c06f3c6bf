"""Saving shows progress all the time, cuts large weights into files, and writes equal states as equal bytes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from transformers import AutoModelForCausalLM

from stages.models.shape import read_shape
from stages.models.tensors import WEIGHTS_INDEX
from stages.training.checkpointing import state_files
from stages.training.checkpointing.checkpoint import published_name
from stages.training.job import OptimizerConfig
from stages.training.model.master_weights import TrainedWeights
from stages.training.trainable import EVERYTHING
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue
from tests.support.policies import load_policy, save_policy
from tests.support.saving import SMALL_FILE, TRAINED, make_source, random_weights, sample_all, save_all
from tests.support.tiers import long_except
from tests.support.trees import save_model

pytestmark = pytest.mark.usefixtures("world_of_one")


def test_saving_and_loading_send_a_heartbeat_with_each_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=True)
    queue, beats = JobQueue(tmp_path), []

    def heartbeat() -> None:
        queue.heartbeat(0)
        beats.append(queue.heartbeats())

    cpu, hardware = torch.device("cpu"), TrainHardware(compute_dtype="fp32")
    weights = TrainedWeights(read_shape(tmp_path / "model"), hardware, cpu, sharded=False, heartbeat=heartbeat)
    tensors = len(weights.masters)

    def heartbeats_of(action: str) -> int:
        count = len(beats)
        {
            "load_checkpoint": lambda: weights.load_checkpoint(tmp_path / "model"),
            "save_state": lambda: weights.save_state(tmp_path / "state"),
            "load_state": lambda: weights.load_state(tmp_path / "state"),
            "save_checkpoint": lambda: weights.save_checkpoint(tmp_path / "model", tmp_path / "new"),
            "save_average": lambda: weights.save_average(tmp_path / "model", 0.5, tmp_path / "average"),
        }[action]()
        return len(beats) - count

    assert heartbeats_of("load_checkpoint") == tensors
    for p in weights.masters.values():
        p.grad = torch.ones_like(p)
    weights.step(OptimizerConfig(), 0.01, weights.gradient_norm())
    assert heartbeats_of("save_state") >= 3 * tensors, "weights and both moments"
    assert heartbeats_of("load_state") >= 3 * tensors
    assert heartbeats_of("save_checkpoint") == tensors + 1
    assert heartbeats_of("save_average") == 2 * tensors + 1
    assert beats[-1] != beats[0]

    monkeypatch.setattr(state_files, "FILE_BYTES", 1000)
    for again in ("several", "again"):
        weights.save_state(tmp_path / again)
    assert len(list((tmp_path / "several").glob("*.distcp"))) == 4 > len(list((tmp_path / "state").glob("*.distcp")))
    before = {name: p.detach().clone() for name, p in weights.masters.items()}
    with torch.no_grad():
        for p in weights.masters.values():
            p.zero_()
    weights.load_state(tmp_path / "several")
    assert all(torch.equal(p, before[name]) for name, p in weights.masters.items())
    files = sorted(path.name for path in (tmp_path / "several").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert all((tmp_path / "several" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


def test_an_error_in_any_file_of_a_state_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "FILE_BYTES", 1000)
    (tmp_path / "state" / "__0_3.distcp").mkdir(parents=True)
    with pytest.raises(CheckpointException, match="Is a directory"):
        random_weights(EVERYTHING, 1).save_state(tmp_path / "state")


def test_large_weights_are_cut_into_files(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=False)
    policy, beats = load_policy(tmp_path / "model"), []
    save_policy(policy, tmp_path / "model", tmp_path / "cut", file_bytes=10_000, heartbeat=lambda: beats.append(1))
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


@pytest.fixture(scope="module")
def saved_by_one(world_of_one: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of `save_all`, saved by this process alone."""
    folder = tmp_path_factory.mktemp("saved")
    make_source(folder / "one")
    save_all(folder / "one", folder / "one" / "everything", 1)
    sample_all(folder / "one", 1)
    return folder


def test_the_files_are_those_of_huggingface_hub(saved_by_one: Path, tmp_path: Path) -> None:
    weights = random_weights(TRAINED["everything"], 1)
    stored = {published_name(name, weights.shape): p.detach().to(torch.bfloat16) for name, p in weights.masters.items()}
    save_torch_state_dict(stored, tmp_path, max_shard_size=SMALL_FILE)
    assert len(_weights_in(tmp_path)) > 5
    assert _weights_in(saved_by_one / "one" / "everything") == _weights_in(tmp_path)


@pytest.mark.parametrize("processes", long_except([2, 4], 2))
def test_several_processes_save_the_same_bytes_and_only_the_first_receives_any(
    saved_by_one: Path, processes: int
) -> None:
    """The rows of 101 tokens do not divide by the processes, and some processes hold no row of an adapter."""
    folder = saved_by_one / f"by-{processes}"
    subprocess.run([sys.executable, "-m", "tests.support.saving", folder, str(processes)], check=True)
    for name in TRAINED:
        for out in (name, f"{name}_average"):
            assert _weights_in(folder / out) == _weights_in(saved_by_one / "one" / out)
        mine, theirs = (load_file(place / f"{name}_sample.safetensors") for place in (saved_by_one / "one", folder))
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
        assert len(mine) > 5
    first, *others = (json.loads((folder / f"rank-{rank}.json").read_text())["bytes"] for rank in range(processes))
    assert first.keys() == {"recv_"} and all(other.keys() == {"send"} for other in others)
    assert first["recv_"] == sum(other["send"] for other in others) > 0


def _weights_in(folder: Path) -> dict[str, Any]:
    files = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    index = folder / WEIGHTS_INDEX
    return files | ({index.name: json.loads(index.read_text())} if index.exists() else {})
