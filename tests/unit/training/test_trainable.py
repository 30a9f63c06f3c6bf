"""Which parameters learn: frozen ones stay bit for bit and cost nothing; LoRA is published as an adapter, or merged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from artifacts.errors import BadInputError
from stages.models.adapters import with_base
from stages.models.shape import read_shape
from stages.models.tensors import check_weights
from stages.training.job import OptimizerConfig, TrainJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.placement import load_reference
from stages.training.trainable import TrainableConfig, is_adapter
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.training import logits_of
from tests.support.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")

CPU = torch.device("cpu")
EVERY_PROJECTION = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ATTENTION = TrainableConfig(parameters="attention")
TOP = TrainableConfig(parameters="top_layers", top_fraction=0.5)
LORA = TrainableConfig(parameters="lora", rank=4, alpha=8.0, projections=EVERY_PROJECTION)
MERGED = LORA.merging()
ONE = TrainHardware(compute_dtype="fp32", threads=1)
TWO = TrainHardware(compute_dtype="fp32", threads=1, processes=2, micro_batch_tokens=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of three layers and a batch of two steps."""
    folder = tmp_path_factory.mktemp("trainable")
    save_model(folder / "model", "Qwen2", tie_word_embeddings=True, num_hidden_layers=3)
    save_file(tree_batch(1, [2, 1, 2], steps=2), folder / "batch.safetensors")
    return folder


def job(folder: Path, out: Path, trainable: TrainableConfig, hardware: TrainHardware, **changes: Any) -> TrainJob:
    return train_job(
        checkpoint_dir=folder / "model", batch_file=folder / "batch.safetensors", learning_rates=[0.01] * 2,
        optimizer=OptimizerConfig(eps=1e-3, weight_decay=0.1), trainable=trainable, hardware=hardware,
        out_checkpoint_dir=out / "checkpoint", out_state_dir=out / "state", events_file=out / "events.jsonl", **changes,
    )  # fmt: skip


def built(
    folder: Path, trainable: TrainableConfig, hardware: TrainHardware = ONE, sharded: bool = False
) -> TrainedWeights:
    return TrainedWeights(read_shape(folder / "model"), hardware, CPU, sharded, trainable)


def trained(
    folder: Path, trainable: TrainableConfig, hardware: TrainHardware = ONE, sharded: bool = False
) -> TrainedWeights:
    weights = built(folder, trainable, hardware, sharded)
    weights.load_checkpoint(folder / "model")
    batch = TrainerBatch(folder / "batch.safetensors", VOCAB)
    trainer = Trainer(weights, job(folder, folder, trainable, hardware), batch, lambda: None)
    for number, rows in trainer.steps():
        trainer.step(number, rows, 2)
    return weights


def whole(weights: TrainedWeights) -> dict[str, torch.Tensor]:
    return {
        name: p.detach().full_tensor() if isinstance(p, DTensor) else p.detach().clone()
        for name, p in weights.masters.items()
    }


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("trainable", "learns", "count"),
    [
        (ATTENTION, ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj"), 3 * 7),
        (TOP, ("layers.1.", "layers.2."), 2 * 12),
        (LORA, (".lora_a.", ".lora_b."), 3 * 7 * 2),
    ],
)
def test_frozen_parameters_stay_and_cost_nothing(
    folder: Path, trainable: TrainableConfig, learns: tuple[str, ...], count: int, dtype: str, sharded: bool
) -> None:
    hardware = ONE.model_copy(update={"compute_dtype": dtype})
    fresh = built(folder, trainable, hardware, sharded)
    fresh.load_checkpoint(folder / "model")
    before, weights = whole(fresh), trained(folder, trainable, hardware, sharded)
    after = whole(weights)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if any(part in name for part in learns)}
    assert len(moved) == count
    assert {id(p) for p in weights.optimizer.state} == {id(weights.masters[name]) for name in moved}
    for name, p in weights.policy.named_parameters():
        master = weights.masters[name]
        assert p.grad is None and master.grad is None
        assert name in moved or (master is p and not p.requires_grad), "a frozen parameter has no second copy"


def test_no_gradient_is_made_for_frozen_parameters(folder: Path) -> None:
    weights = built(folder, ATTENTION)
    weights.load_checkpoint(folder / "model")
    flat = TrainerBatch(folder / "batch.safetensors", VOCAB).flat([0])
    logprobs, *_ = weights.policy(weights.policy.inputs(flat, torch.float32, CPU), 1.0)
    logprobs.sum().backward()
    with_gradient = {name for name, p in weights.policy.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name in weights.masters if "_proj." in name}


@pytest.mark.parametrize("trainable", [ATTENTION, TOP, LORA])
def test_sharded_equals_plain(folder: Path, trainable: TrainableConfig) -> None:
    plain, sharded = whole(trained(folder, trainable)), whole(trained(folder, trainable, sharded=True))
    assert plain.keys() == sharded.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(tensor, sharded[name], atol=2e-5, rtol=1e-4)


def test_adapters_change_nothing_before_the_first_step(folder: Path) -> None:
    flat = TrainerBatch(folder / "batch.safetensors", VOCAB).flat([0])
    logits: list[torch.Tensor] = []
    for trainable in (LORA, TrainableConfig()):
        weights = built(folder, trainable)
        weights.load_checkpoint(folder / "model")
        with torch.no_grad():
            logits.append(logits_of(weights.policy, weights.policy.inputs(flat, torch.float32, CPU)))
    assert torch.equal(logits[0], logits[1])


def test_a_merged_checkpoint_is_the_trained_model_in_plain_weights(folder: Path, tmp_path: Path) -> None:
    weights = trained(folder, MERGED)
    weights.save_checkpoint(folder / "model", tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["torch_dtype"] == config["dtype"] == "bfloat16", "for transformers 4 and 5"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    flat = TrainerBatch(folder / "batch.safetensors", VOCAB).flat([0])
    plain = TrainedWeights(read_shape(tmp_path / "merged"), ONE, CPU, sharded=False)
    plain.load_checkpoint(tmp_path / "merged")  # refuses names that the config does not call for
    inputs = weights.policy.inputs(flat, torch.float32, CPU)
    sequence = flat.tokens[flat.segment_ids == 0]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    base = built(folder, TrainableConfig())
    base.load_checkpoint(folder / "model")
    with torch.no_grad():
        mine, published, untrained = (logits_of(model.policy, inputs) for model in (weights, plain, base))
        reference = theirs(sequence[None]).logits[0, -1]
    rounding, learned = (mine - published).abs().mean(), (mine - untrained).abs().mean()
    assert rounding < 0.01 * mine.abs().mean(), "bf16 keeps 8 bits of a weight"
    assert learned > 10 * rounding
    first = int((flat.predictors[0] == sequence.numel() - 1).nonzero()[0])
    torch.testing.assert_close(reference, published[first], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("sharded", [False, True])
def test_an_adapter_is_published_alone_and_continued(folder: Path, tmp_path: Path, sharded: bool) -> None:
    """The checkpoint has the adapter in float32, the state nothing of the base; full weights are made where wanted."""
    weights = trained(folder, LORA, sharded=sharded)
    weights.save_checkpoint(folder / "model", tmp_path / "adapter")
    weights.save_state(tmp_path / "state")
    assert not list((tmp_path / "adapter").glob("model*"))
    names = FileSystemReader(tmp_path / "state").read_metadata().state_dict_metadata
    assert {name for name in names if name.startswith("weights.")} == {
        f"weights.{name}" for name in weights.masters if is_adapter(name)
    }
    checkpoint = with_base(tmp_path / "adapter", folder / "model", tmp_path / "linked")
    check_weights(checkpoint)
    again = built(folder, LORA)
    again.load_checkpoint(checkpoint)
    for name, tensor in whole(weights).items():
        assert torch.equal(tensor, whole(again)[name]), name
    full = built(folder, TrainableConfig())
    full.load_checkpoint(checkpoint)
    first = "decoder.layers.0.attn.q_proj"
    a, b = (whole(weights)[f"{first}.lora_{side}.weight"] for side in "ab")
    torch.testing.assert_close(
        whole(full)[f"{first}.weight"], whole(weights)[f"{first}.weight"] + 2.0 * b @ a, atol=1e-6, rtol=1e-6
    )
    other = LORA.model_copy(update={"rank": 8})
    with pytest.raises(BadInputError, match=r"rank = 8, .*; expected the adapter's rank = 4, .*merge = true"):
        built(folder, other).load_checkpoint(checkpoint)
    built(folder, other.merging()).load_checkpoint(checkpoint)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_reference_keeps_its_adapter_beside_the_weights(folder: Path, tmp_path: Path, sharded: bool) -> None:
    """A sum of weights and adapter that is rounded to bf16 would lose most of what small steps learned."""
    hardware = ONE.model_copy(update={"compute_dtype": "bf16"})
    weights = trained(folder, LORA, hardware, sharded)
    weights.save_checkpoint(folder / "model", tmp_path / "adapter")
    checkpoint = with_base(tmp_path / "adapter", folder / "model", tmp_path / "linked")
    reference = load_reference(checkpoint, VOCAB, hardware, CPU, sharded)
    assert not any(p.requires_grad for p in reference.parameters())
    flat = TrainerBatch(folder / "batch.safetensors", VOCAB).flat([0])
    with torch.no_grad():
        trained_one, loaded = (
            model(model.inputs(flat, torch.bfloat16, CPU), 1.0)[0] for model in (weights.policy, reference)
        )
    assert torch.equal(trained_one, loaded)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_merging_adapters_leaves_the_weights_in_memory(folder: Path, tmp_path: Path, dtype: str) -> None:
    """In either precision, frozen weights are gathered without a copy, and torchtune adds adapters in place."""
    hardware = ONE.model_copy(update={"compute_dtype": dtype})
    weights = trained(folder, MERGED, hardware)
    before = whole(weights)
    weights.save_checkpoint(folder / "model", tmp_path / "merged")
    weights.save_average(folder / "model", 0.0, tmp_path / "average")
    for name, tensor in whole(weights).items():
        assert torch.equal(tensor, before[name]), name
    published, average = (load_file(tmp_path / out / "model.safetensors") for out in ("merged", "average"))
    for module in ("self_attn.q_proj", "mlp.down_proj"):
        name = f"model.layers.0.{module}.weight"
        policy_name = {"self_attn.q_proj": "attn.q_proj", "mlp.down_proj": "mlp.w2"}[module]
        prefix = f"decoder.layers.0.{policy_name}"
        a, b = before[f"{prefix}.lora_a.weight"].float(), before[f"{prefix}.lora_b.weight"].float()
        expected = before[f"{prefix}.weight"].float() + LORA.alpha / LORA.rank * b @ a
        assert torch.equal(published[name], expected.to(torch.bfloat16))
        torch.testing.assert_close(average[name], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("trainable", [LORA, MERGED])
def test_a_state_goes_on_as_if_nothing_had_happened(folder: Path, tmp_path: Path, trainable: TrainableConfig) -> None:
    weights = trained(folder, trainable)
    weights.save_state(tmp_path / "state")
    for sharded in (False, True):
        other = built(folder, trainable, sharded=sharded)
        other.load_state(tmp_path / "state", folder / "model")
        for name, tensor in whole(weights).items():
            assert torch.equal(tensor, whole(other)[name])
            moments = weights.optimizer.state.get(weights.masters[name], {})
            for key, moment in moments.items():
                other_moment = other.optimizer.state[other.masters[name]][key]
                assert torch.equal(
                    moment, other_moment.full_tensor() if isinstance(other_moment, DTensor) else other_moment
                )
    with pytest.raises(BadInputError, match="an optimizer state of this model"):
        built(folder, TrainableConfig()).load_state(tmp_path / "state")


@pytest.mark.release
def test_two_processes_equal_one_and_a_worker_group_takes_another_choice(folder: Path, tmp_path: Path) -> None:
    with WorkerGroup(ONE, tmp_path / "one") as group:
        one = group.run(job(folder, tmp_path / "lora", MERGED, ONE))
        group.remember("lora", group.write)
        with_all = group.run(job(folder, tmp_path / "all", TrainableConfig(), ONE))
        assert with_all.steps[0].loss == pytest.approx(one.steps[0].loss, abs=1e-6)
        assert with_all.steps[0].grad_norm and one.steps[0].grad_norm
        assert with_all.steps[0].grad_norm > 2 * one.steps[0].grad_norm
    with WorkerGroup(TWO, tmp_path / "two") as pair:
        two = pair.run(job(folder, tmp_path / "pair", MERGED, TWO))
    for a, b in zip(one.steps, two.steps, strict=True):
        assert a.loss == pytest.approx(b.loss, abs=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / out / "checkpoint", dtype=torch.float32).state_dict()
        for out in ("lora", "pair")
    )
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], atol=4e-3, rtol=2**-7)


@pytest.mark.parametrize(
    ("fraction", "layers", "first"), [(0.7, 10, 3), (0.7, 30, 9), (0.5, 3, 1), (0.01, 12, 11), (1.0, 4, 0)]
)
def test_the_share_of_layers_is_rounded_up(fraction: float, layers: int, first: int) -> None:
    config = TrainableConfig(parameters="top_layers", top_fraction=fraction)
    learning = [n for n in range(layers) if config.trains(f"decoder.layers.{n}.mlp.w1.weight", layers)]
    assert learning == list(range(first, layers))
    assert not any(config.trains(name, layers) for name in ("decoder.norm.scale", "decoder.tok_embeddings.weight"))


@pytest.mark.parametrize(
    "wrong",
    [{"rank": 8}, {"parameters": "attention", "top_fraction": 0.25}, {"parameters": "lora", "projections": ()}],
)
def test_settings_of_another_choice_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainableConfig.model_validate(wrong)
    assert TrainableConfig.model_validate(LORA.model_dump(mode="json")) == LORA
