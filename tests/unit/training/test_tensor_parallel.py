"""Tensor parallelism changes nothing but rounding: neither the steps nor the files of weights and states.

In float32 layouts differ by the order of sums: losses by 1e-5, gradient norms by 1e-4 of their size, and weights after
four AdamW steps of 0.01 by 1e-4 (eps 1e-3, as in `test_invariance.py`).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save_file
from safetensors.torch import load_file

from artifacts.errors import BadInputError
from stages.models.shape import read_shape
from stages.training.job import LossConfig, OptimizerConfig, ScoreJob, TrainJob, ValueJob
from stages.training.model.placement import place_policy
from stages.training.results import StepMetrics
from stages.training.trainable import TrainableConfig
from stages.training.worker_group.hardware import TrainHardware
from tests.support.forked_workers import Job, run_groups
from tests.support.jobs import train_job
from tests.support.trees import save_model, tree_batch

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("Qwen2", {"tie_word_embeddings": True}),
    "head norms": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "intermediate_size": 50}),
}
"""The vocabulary of 101 and a half of 50 do not divide by two, so some processes hold one row less."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "fsdp": {"processes": 2},
    "tensor": {"processes": 2, "tensor_parallel": 2, "micro_batch_tokens": 30, "activation_checkpointing": True},
    "both": {"processes": 4, "tensor_parallel": 2, "micro_batch_tokens": 30, "cpu_offload": True},
}
LOSS = LossConfig(kl_coef=0.1, entropy_coef=0.02, old_logprobs="trainer", aggregation="sequence_mean")

Trained = tuple[list[StepMetrics], dict[str, torch.Tensor]]


def hardware(layout: str, **changes: Any) -> TrainHardware:
    return TrainHardware(**{"compute_dtype": "fp32", "threads": 1, "device": "cpu", **LAYOUTS[layout], **changes})


def job(folder: Path, model: str, layout: str, out: str, **changes: Any) -> TrainJob:
    """A job of two epochs, with weights in float32 as an average that gives the old ones no weight."""
    values: dict[str, Any] = {
        "checkpoint_dir": folder / model, "batch_file": folder / "batch.safetensors", "learning_rates": [0.01] * 4,
        "epochs": 2, "loss": LOSS, "optimizer": OptimizerConfig(eps=1e-3), "hardware": hardware(layout),
        "reference_dir": folder / model, "reference_decay": 0.0, "out_reference_dir": folder / out / "exact",
        "out_state_dir": folder / out / "state", "out_checkpoint_dir": folder / out / "new",
        "events_file": folder / out / "events.jsonl",
    }  # fmt: skip
    return train_job(**{**values, **changes})


def jobs(folder: Path, layout: str) -> list[Job]:
    """One for each model, a critic, log-probabilities, and one from the state that one process left."""
    value = {
        "value": ValueJob(head="bounded"),
        "loss": LossConfig(old_logprobs="trainer"),
        "reference_dir": None,
        "out_reference_dir": None,
    }
    score = ScoreJob(
        checkpoint_dir=folder / "head norms", batch_file=folder / "batch.safetensors", temperature=0.7,
        hardware=hardware(layout), out_file=folder / f"{layout}.safetensors", events_file=folder / layout / "events",
    )  # fmt: skip
    state = folder / "one" / "biases" / "state"
    return [
        *(job(folder, model, layout, f"{layout}/{model}") for model in MODELS),
        job(folder, "tied", layout, f"{layout}/value", **value),
        job(folder, "biases", layout, f"{layout}/continued", state_dir=state),
        score,
    ]


def continued(folder: Path, layout: str) -> dict[str, tuple[TrainHardware, list[Job]]]:
    """Jobs of the other layouts that continue from the state that one left."""
    names = {other: f"{other}-after-{layout}" for other in ("one", "fsdp", "tensor") if other != layout}
    state = folder / layout / "biases" / "state"
    return {
        name: (hardware(other), [job(folder, "biases", other, name, state_dir=state)]) for other, name in names.items()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, a batch, and the results of one process, of two with FSDP2 and of two with tensor parallelism."""
    folder = tmp_path_factory.mktemp("layouts")
    for name, (architecture, changes) in MODELS.items():
        save_model(folder / name, architecture, **changes)
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), folder / "batch.safetensors")
    groups = {name: (hardware(name), jobs(folder, name)) for name in ("one", "fsdp", "tensor")}
    run_groups(folder / "queues", {**groups, **continued(folder, "tensor")})
    return folder


def trained(folder: Path) -> Trained:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    for step in steps:
        del step["event"], step["time_s"]
    kind = "exact" if (folder / "exact").exists() else "new"
    return [StepMetrics.model_validate(step) for step in steps], load_file(folder / kind / "model.safetensors")


def assert_same(first: Trained, second: Trained, tolerance: float = 1e-4) -> None:
    assert len(first[0]) == len(second[0]) == 4 and first[1].keys() == second[1].keys()
    for a, b in zip(first[0], second[0], strict=True):
        assert (a.tokens, a.loss_tokens) == (b.tokens, b.loss_tokens)
        numbers = [(step.loss, step.kl or 0.0, step.entropy or 0.0) for step in (a, b)]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-5, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
        assert (a.ratio_max or 0.0) == pytest.approx(b.ratio_max or 0.0, rel=1e-4)  # a critic has no ratio
    for name, tensor in first[1].items():
        torch.testing.assert_close(tensor, second[1][name], atol=tolerance, rtol=tolerance)


def assert_as_one(folder: Path, layout: str) -> None:
    for model in (*MODELS, "continued"):
        assert_same(trained(folder / layout / model), trained(folder / "one" / model))
    assert_same(trained(folder / layout / "value"), trained(folder / "one" / "value"), 2**-7)  # weights in bf16
    scores, expected = (load_file(folder / f"{name}.safetensors")["logprobs"] for name in (layout, "one"))
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["fsdp", "tensor"])
def test_two_processes_equal_one(folder: Path, layout: str) -> None:
    assert_as_one(folder, layout)


@pytest.mark.long
@pytest.mark.parametrize("other", ["one", "fsdp"])
def test_a_state_of_tensor_parallelism_continues_in_any_layout(folder: Path, other: str) -> None:
    assert_same(trained(folder / f"{other}-after-tensor"), trained(folder / "one" / "continued"))


@pytest.mark.release
def test_four_processes_that_divide_layers_and_rows_equal_one(folder: Path) -> None:
    groups = {"both": (hardware("both"), jobs(folder, "both")), **continued(folder, "both")}
    run_groups(folder / "queues", groups)
    assert_as_one(folder, "both")
    for name in groups.keys() - {"both"}:
        assert_same(trained(folder / name), trained(folder / "one" / "continued"))


def test_layouts_and_models_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="tensor_parallel 2 does not divide nodes x processes, 1 x 3"):
        TrainHardware(processes=3, tensor_parallel=2)
    with pytest.raises(ValidationError, match="compile = true needs tensor_parallel = 1"):
        TrainHardware(processes=2, tensor_parallel=2, compile=True)
    assert not TrainHardware(processes=2, tensor_parallel=2).compiles("cuda"), "auto is off there"
    save_model(tmp_path, "Qwen2", tie_word_embeddings=True)
    shape = read_shape(tmp_path)
    arguments = torch.device("cpu"), True, torch.float32
    with pytest.raises(BadInputError) as refused:
        place_policy(shape, hardware("tensor", processes=4, tensor_parallel=4), *arguments)
    assert str(refused.value) == (
        "trainer.tensor_parallel: 4, for a model with 4 heads, 2 key-value heads, width 32 and feed-forward width 48; "
        "expected a number that divides all of them: 1, 2"
    )
    with pytest.raises(BadInputError, match=r"trainer\.tensor_parallel: 2, with finetune\.trainable\.parameters = 'lo"):
        place_policy(shape, hardware("tensor"), *arguments, TrainableConfig(parameters="lora"))
