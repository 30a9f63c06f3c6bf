"""How much of what was trained is published in bf16, measured on the weights and on what the model says."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file as save_batch
from safetensors.torch import load_file, save_file

from stages.finetune import FinetuneConfig
from stages.models.shape import read_shape
from stages.models.tensors import WEIGHTS
from stages.optional.sft import SftConfig, WarmStartConfig
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.movement import SAMPLE, movement_lost, sampled_rows
from stages.training.rounding import SPREAD
from stages.training.schedules.learning_rates import LearningRateConfig
from stages.training.trainable import PROJECTIONS, TrainableConfig, is_adapter
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")

CPU = torch.device("cpu")
HARDWARE = TrainHardware(compute_dtype="fp32")
STEPS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose weights are as large as those of a real one, and a batch."""
    folder = tmp_path_factory.mktemp("movement")
    save_model(folder / "model", "Qwen2", tie_word_embeddings=True, hidden_size=64, intermediate_size=128)
    draw = torch.Generator().manual_seed(0)
    weights = {
        name: tensor if "norm" in name else (SPREAD * torch.randn(tensor.shape, generator=draw)).bfloat16()
        for name, tensor in load_file(folder / "model" / WEIGHTS).items()
    }
    save_file(weights, folder / "model" / WEIGHTS, metadata={"format": "pt"})
    save_batch(tree_batch(1, [2] * STEPS, steps=STEPS), folder / "batch.safetensors")
    return folder


MERGED = {"all": TrainableConfig(), "lora": TrainableConfig(parameters="lora", merge=True)}


def built(folder: Path, trainable: TrainableConfig) -> TrainedWeights:
    weights = TrainedWeights(read_shape(folder), HARDWARE, CPU, sharded=False, trainable=trainable)
    weights.load_checkpoint(folder)
    return weights


def logprobs(weights: TrainedWeights, batch: TrainerBatch) -> torch.Tensor:
    """Log-probabilities of all completions, in float64."""
    with torch.no_grad():
        parts = [
            weights.policy(weights.policy.inputs(batch.flat([row]), torch.float32, CPU), 1.0)[0] for row in range(STEPS)
        ]
    return torch.cat(parts).double()


def as_sampled(weights: TrainedWeights) -> TrainedWeights:
    """The same model with its adapters as an engine holds them, in bf16."""
    with torch.no_grad():
        for name, p in weights.masters.items():
            if is_adapter(name):
                p.copy_(p.bfloat16())
    weights.refresh()
    return weights


@pytest.mark.parametrize(
    ("parameters", "rate", "expected"),
    [
        ("all", 1e-6, 0.87), ("all", 1e-5, 0.14), ("all", 1e-4, 0.0),
        ("lora", 1e-6, 0.91), ("lora", 1e-5, 0.33), ("lora", 1e-4, 0.0),
        ("adapter", 1e-7, 0.0), ("adapter", 1e-6, 0.0), ("adapter", 1e-4, 0.0),
    ],
)  # fmt: skip
def test_the_share_that_is_lost_is_that_of_the_movement_in_log_probability(
    folder: Path, tmp_path: Path, parameters: str, rate: float, expected: float
) -> None:
    """What was published moves the log-probabilities that much less along the way that training moved them."""
    batch = folder / "batch.safetensors"
    trainable = TrainableConfig(parameters="lora") if parameters == "adapter" else MERGED[parameters]
    job = train_job(
        checkpoint_dir=folder / "model", batch_file=batch, learning_rates=[rate] * STEPS, trainable=trainable,
        hardware=HARDWARE, out_checkpoint_dir=tmp_path / "out", events_file=tmp_path / "events",
    )  # fmt: skip
    weights = built(folder / "model", trainable)
    trainer = Trainer(weights, job, TrainerBatch(batch, VOCAB), lambda: None)
    sample, before = weights.sample(), logprobs(weights, TrainerBatch(batch, VOCAB))
    for number, rows in trainer.steps():
        trainer.step(number, rows, STEPS)
    lost = movement_lost(sample, weights.sample())
    trained = logprobs(weights, TrainerBatch(batch, VOCAB)) - before
    if parameters == "adapter":
        sampler = as_sampled(weights)
    else:
        weights.save_checkpoint(folder / "model", tmp_path / "out")
        sampler = built(tmp_path / "out", TrainableConfig())
    published = logprobs(sampler, TrainerBatch(batch, VOCAB)) - before
    assert lost == pytest.approx(expected, abs=0.05)
    assert lost == pytest.approx(1.0 - float(published @ trained / (trained @ trained)), abs=0.05)


def test_the_share_worked_by_hand() -> None:
    """From 1.25 x 2^-6 on, numbers of bf16 are 2^-13 apart."""
    start, step = torch.tensor([1.25 * 2**-6] * 2), 2.0**-13
    for moves, expected in (([0.49, 0.49], 1.0), ([1.0, 2.0], 0.0), ([0.4, 1.0], 0.16 / 1.16), ([0.6, 0.6], -2 / 3)):
        after = start + step * torch.tensor(moves)
        assert movement_lost({"w": start}, {"w": after}) == pytest.approx(expected, abs=1e-4)
    assert movement_lost({"w": start}, {"w": start}) is None


def test_a_bounded_sample_is_taken_from_the_whole_of_a_matrix() -> None:
    rows = sampled_rows(torch.Size([151_936, 5120]))
    assert rows.numel() * 5120 <= SAMPLE and rows[0] == 0 and rows[-1] > 0.9 * 151_936
    assert torch.equal(sampled_rows(torch.Size([64, 1024])), torch.arange(64)), "a small one is taken whole"
    assert sampled_rows(torch.Size([3, 10 * SAMPLE])).tolist() == [0]
    assert sampled_rows(torch.Size([2 * SAMPLE])).numel() == 2 * SAMPLE


def test_only_what_can_move_is_sampled_and_nothing_of_masters_in_bf16(folder: Path) -> None:
    shape = read_shape(folder / "model")
    lora = built(folder / "model", TrainableConfig(parameters="lora", projections=("q_proj",), merge=True)).sample()
    assert set(lora) == {f"decoder.layers.{layer}.attn.q_proj.weight" for layer in range(shape.layers)}
    rounded = TrainedWeights(shape, HARDWARE, CPU, sharded=False, master_dtype="bf16")
    assert rounded.sample() == {}


def test_lora_has_the_defaults_of_its_literature() -> None:
    """Ten times the rate of full weights, and all linear maps of a layer."""
    lora = {"trainable": {"parameters": "lora"}}
    for kind, full in ((FinetuneConfig, 1e-6), (LearningRateConfig, 1e-6), (SftConfig, 1e-5), (WarmStartConfig, 1e-4)):
        assert kind().learning_rate == full
        if "trainable" in kind.model_fields:
            assert kind.model_validate(lora).learning_rate == pytest.approx(10 * full, rel=1e-12)
            assert kind.model_validate({**lora, "learning_rate": full}).learning_rate == full
    assert FinetuneConfig(trainable=TrainableConfig(parameters="lora")).learning_rate == 1e-5
    assert set(TrainableConfig(parameters="lora").projections) == set(PROJECTIONS)
