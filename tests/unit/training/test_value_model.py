"""The critic: where values are read, what they learn, and that its checkpoints are read again; positive NLL."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from artifacts.errors import BadInputError
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.shape import read_shape
from stages.models.tensors import check_weights
from stages.models.value_head import ValueHead
from stages.training.job import LossConfig, OptimizerConfig, ValueJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import Policy
from stages.training.objectives.objective import OLD
from stages.training.objectives.values import targets_of
from stages.training.trainable import TrainableConfig
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.training import CPU, logprobs_of, repacked, train
from tests.support.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")
HARDWARE = TrainHardware(compute_dtype="fp32")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save_model(folder, "Llama", tie_word_embeddings=False)
    return folder


def loaded(folder: Path, head: ValueHead, hardware: TrainHardware = HARDWARE, **trainable: Any) -> TrainedWeights:
    shape = replace(read_shape(folder), value_head=head)
    weights = TrainedWeights(shape, hardware, CPU, False, TrainableConfig(**trainable))
    weights.load_checkpoint(folder)
    return weights


def no_reference() -> Policy:
    raise AssertionError


def values_of(trainer: Trainer, columns: dict[str, NDArray[Any]]) -> torch.Tensor:
    """The values under the starting weights, as in the file that a job writes."""
    return trainer.kept_numbers()[OLD].view(columns["tokens"].shape)


def trainer_of(
    weights: TrainedWeights,
    folder: Path,
    columns: dict[str, NDArray[Any]],
    steps: int = 1,
    hardware: TrainHardware = HARDWARE,
    **value: Any,
) -> Trainer:
    """A trainer that has computed the old values."""
    path = folder / "batch.safetensors"
    save_file(columns, path)
    assert weights.shape.value_head is not None
    minibatches = int(columns["minibatch"].max()) + 1
    job = train_job(
        checkpoint_dir=folder, batch_file=path, learning_rates=[0.01] * steps, epochs=steps // minibatches,
        value=ValueJob(head=weights.shape.value_head, **value),
        optimizer=OptimizerConfig(eps=1e-3), hardware=hardware, out_checkpoint_dir=folder / "out",
        events_file=folder / "events.jsonl",
    )  # fmt: skip
    trainer = Trainer(weights, job, TrainerBatch(path, VOCAB), lambda: None)
    trainer.prepare(no_reference)
    return trainer


def columns_of(groups: list[Group], **config: Any) -> dict[str, NDArray[Any]]:
    packed, _ = pack_groups(groups, PackConfig(row_tokens=64, **config))
    return {name: getattr(packed, name) for name in [*packed.dtypes(), *(["right"] if config else [])]}


def test_a_value_is_read_from_the_state_before_its_token(policy: Path, tmp_path: Path) -> None:
    """V(s_1) stands at the prompt's last token, for both completions; the head of 0 gives 0 everywhere."""
    first, second = Branch([7, 8, 9], [-1.0] * 3, [0.0, 0.0, 1.0]), Branch([5, 6], [-1.0] * 2, [0.0, -1.0])
    columns, weights = columns_of([Group([1, 2, 3], [first, second])]), loaded(policy, "linear")
    in_loss = columns["completion_mask"][0] == 1
    assert values_of(trainer_of(weights, tmp_path, columns), columns)[0].numpy()[in_loss].tolist() == [0.0] * 5
    head = torch.randn(1, weights.shape.embed_dim, generator=torch.Generator().manual_seed(1))
    weights.masters["value_head.weight"].data.copy_(head)
    values = values_of(trainer_of(weights, tmp_path, columns), columns)[0].numpy()
    assert np.isnan(values[~in_loss]).all()
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).model
    expected: list[float] = []
    for branch in (first, second):
        with torch.no_grad():
            states = model(torch.tensor([[1, 2, 3, *branch.tokens]])).last_hidden_state[0]
        expected += (states[2:-1] @ head[0]).tolist()
    assert expected[0] == pytest.approx(expected[3])
    np.testing.assert_allclose(values[in_loss], expected, rtol=1e-4, atol=1e-4)


def test_the_head_computes_in_fp32_when_the_decoder_computes_in_bf16(policy: Path, tmp_path: Path) -> None:
    """Values are those of the bf16 states times the fp32 head: they are finer than the steps of bf16, and so is w."""
    columns, hardware = tree_batch(1, [2, 3]), HARDWARE.model_copy(update={"compute_dtype": "bf16"})
    weights = loaded(policy, "linear", hardware)
    head = torch.randn(1, weights.shape.embed_dim, generator=torch.Generator().manual_seed(1))
    weights.masters["value_head.weight"].data.copy_(head)
    weights.refresh()
    trainer = trainer_of(weights, tmp_path, columns, hardware=hardware)
    states: list[torch.Tensor] = []
    hook = weights.policy.get_submodule("value_head").register_forward_pre_hook(lambda _, seen: states.append(seen[0]))
    trainer.prepare(no_reference)
    hook.remove()
    values = values_of(trainer, columns)
    values = values[~values.isnan()]
    rounded = (torch.cat(states).bfloat16().float() @ head[0]).sort().values
    torch.testing.assert_close(values.sort().values, rounded, atol=1e-6, rtol=1e-6)
    assert int((values != values.bfloat16().float()).sum()) > len(values) // 2
    for number, rows in trainer.steps():
        trainer.step(number, rows, 1)
    w = dict(weights.policy.named_parameters())["value_head.weight"]
    assert torch.equal(w, weights.masters["value_head.weight"]) and not torch.equal(w, head)


def test_a_bounded_head_begins_in_the_middle_and_stays_inside(policy: Path, tmp_path: Path) -> None:
    columns = tree_batch(2, [2])
    weights = loaded(policy, "bounded")
    trainer = trainer_of(weights, tmp_path, columns, steps=30, low=-1.0, high=3.0)
    values = values_of(trainer, columns)
    assert values[torch.from_numpy(columns["completion_mask"]) == 1].unique().tolist() == [1.0]
    columns["advantages"] = np.full_like(columns["advantages"], 9.0)  # more than the head can say
    trainer = trainer_of(weights, tmp_path, columns, steps=30, low=-1.0, high=3.0)
    for number, rows in trainer.steps():
        trainer.step(number, rows, 30)
    values = values_of(trainer_of(weights, tmp_path, columns, low=-1.0, high=3.0), columns)
    assert float(values[~values.isnan()].min()) > 2.0 and float(values[~values.isnan()].max()) < 3.0


def test_a_constant_reward_is_learned_and_the_first_loss_is_that_of_a_value_of_0(policy: Path, tmp_path: Path) -> None:
    """Reward 0.5 after the last token of each completion: each target is 0.5, and half its square is 0.125."""
    branches = [Branch([10 + i, 20 + i], [-1.0] * 2, [0.0, 0.5]) for i in range(3)]
    columns = columns_of([Group([1, 2], branches), Group([3], branches[:2])])
    trainer = trainer_of(loaded(policy, "linear"), tmp_path, columns, steps=60)
    losses = [trainer.step(number, rows, 60).loss or 0.0 for number, rows in trainer.steps()]
    assert losses[0] == pytest.approx(0.125)
    assert losses[-1] < 1e-3


@pytest.mark.parametrize("lambda_", [1.0, 0.9])
def test_packing_and_micro_batches_do_not_matter(policy: Path, tmp_path: Path, lambda_: float) -> None:
    columns = tree_batch(1, [2, 1, 3, 1], steps=2)
    outcomes: list[dict[str, torch.Tensor]] = []
    for given, micro_batch_tokens in ((columns, 4096), (repacked(columns), 20)):
        weights = loaded(policy, "linear")
        hardware = HARDWARE.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
        trainer = trainer_of(weights, tmp_path, given, steps=4, hardware=hardware, lambda_=lambda_, clip=0.2)
        for step, rows in trainer.steps():
            trainer.step(step, rows, 4)
        outcomes.append({name: p.detach().clone() for name, p in weights.masters.items()})
    for name, tensor in outcomes[0].items():
        torch.testing.assert_close(tensor, outcomes[1][name], atol=2e-5, rtol=1e-4)


def test_targets_of_adjacent_completions() -> None:
    """Two completions: reward 1 with values .2 .4 .6 .8, and reward 0 with values .5 .5; lambda 0.5 and 1."""
    sequences = torch.tensor([4, 4, 4, 4, 7, 7])
    rewards = torch.tensor([0.0, 0, 0, 1, 0, 0])
    values = torch.tensor([0.2, 0.4, 0.6, 0.8, 0.5, 0.5])
    torch.testing.assert_close(targets_of(sequences, rewards, values, 1.0), torch.tensor([1.0, 1, 1, 1, 0, 0]))
    half = targets_of(sequences, rewards, values, 0.5)
    torch.testing.assert_close(half, torch.tensor([0.575, 0.75, 0.9, 1.0, 0.25, 0.0]))


def test_a_checkpoint_of_a_critic_is_read_again_and_says_what_it_is(policy: Path, tmp_path: Path) -> None:
    weights = loaded(policy, "linear")
    with torch.no_grad():
        weights.masters["value_head.weight"].fill_(0.25)
    weights.save_checkpoint(policy, tmp_path / "critic")
    assert read_shape(tmp_path / "critic").value_head == "linear"
    stored = check_weights(tmp_path / "critic")
    assert "lm_head.weight" not in stored and stored["value_head.weight"].shape == (1, weights.shape.embed_dim)
    again = loaded(tmp_path / "critic", "linear")
    assert again.masters["value_head.weight"].unique().tolist() == [0.25]
    with pytest.raises(BadInputError, match="a critic with a linear head; expected a bounded head"):
        loaded(tmp_path / "critic", "bounded")


@pytest.mark.parametrize("parameters", ["except_attention", "lora", "top_layers"])
def test_the_head_always_learns(policy: Path, parameters: str) -> None:
    weights = loaded(policy, "linear", parameters=parameters)
    trained = {name for name, p in weights.masters.items() if p.requires_grad}
    assert "value_head.weight" in trained
    projections = {name for name in trained if "attn" in name and "lora" not in name}
    assert not projections or parameters == "top_layers"
    assert ("decoder.norm.scale" in trained) == (parameters == "except_attention")


def test_positive_nll_is_a_mean_over_the_tokens_of_right_completions(policy: Path, tmp_path: Path) -> None:
    """It is added to the loss of the advantages; without a right completion it is 0."""
    right, wrong = Branch([7, 8, 9], [-1.0] * 3, 1.0, right=True), Branch([5, 6], [-1.0] * 2, -1.0)
    for branches, counted in (([right, wrong, replace(right, tokens=[4, 4], logprobs=[-1.0] * 2)], 5), ([wrong], 0)):
        columns = columns_of([Group([1, 2, 3], branches)], mark_right=True)
        assert columns["right"].sum() == counted
        (plain,), _ = train(policy, tmp_path, columns, epochs=1)
        (step,), _ = train(policy, tmp_path, columns, epochs=1, loss=LossConfig(positive_nll=0.1))
        logprobs = logprobs_of(policy, tmp_path / "batch.safetensors")
        marks = torch.from_numpy(columns["right"][columns["completion_mask"] == 1])
        expected = float(-(logprobs * marks).sum()) / max(1, counted)
        assert plain.positive_nll is None and step.positive_nll == pytest.approx(expected)
        assert step.loss == pytest.approx((plain.loss or 0.0) + 0.1 * expected)
