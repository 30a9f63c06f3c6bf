"""Optimizer steps: independent of micro-batches, packing and sharding; hand-checked old log-probabilities."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from artifacts.errors import BadInputError
from stages.grpo.groups import Branch, Group
from stages.grpo.loss import TokenLoss
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.shape import read_shape
from stages.training.job import LossConfig, OptimizerConfig
from stages.training.model import master_weights
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.placement import load_reference
from stages.training.objectives.objective import StepLoss
from stages.training.objectives.policy import gap_metrics, token_sums
from stages.training.results import StepMetrics
from stages.training.step_sums import StepSums
from stages.training.trainer_batch import TrainerBatch, micro_batches
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import ARCHITECTURES
from tests.support.tiers import long_except
from tests.support.training import assert_same, logprobs_of, repacked, train
from tests.support.trees import VOCAB, save_model, tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")

CPU = torch.device("cpu")
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@pytest.mark.parametrize(
    "settings",
    [
        {"aggregation": "token_mean", "kl_coef": 0.1, "kl_estimator": "unbiased_k3"},
        {"aggregation": "sequence_mean", "kind": "gspo", "dual_clip": 1.5},
        {"aggregation": "inverse_length", "old_logprobs": "trainer", "importance_correction": "sequence_truncate"},
        {"aggregation": "constant", "constant_tokens": 9, "kind": "cispo"},
        {"aggregation": "group_mean", "kl_coef": 0.1, "kl_clamp": 0.5},
    ],
)
def test_micro_batches_and_packing_do_not_matter(
    checkpoint: Path, other: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    loss = LossConfig.model_validate({"entropy_coef": 0.02, **settings})
    columns, reference = tree_batch(1, [2, 1, 3, 1], steps=2), other if loss.kl_coef else None
    whole = train(checkpoint, tmp_path, columns, loss=loss, reference=reference)
    for layout in ({"micro_batch_tokens": 10}, {"logprob_chunk_tokens": 3}):
        assert_same(whole, train(checkpoint, tmp_path, columns, loss=loss, reference=reference, **layout))
    again = repacked(columns)
    assert_same(whole, train(checkpoint, tmp_path, again, loss=loss, reference=reference, micro_batch_tokens=40))


def test_the_loss_of_the_router_depends_on_neither_rows_nor_processes(tmp_path: Path) -> None:
    folder, columns = tmp_path / "experts", tree_batch(1, [2, 1, 3, 1], steps=2)
    save_model(folder, ARCHITECTURES["qwen3-moe"][0], **ARCHITECTURES["qwen3-moe"][1])
    loss = LossConfig(router_aux_loss_coef=0.5)
    whole = train(folder, tmp_path, columns, loss=loss)
    savers = {"micro_batch_tokens": 10, "activation_checkpointing": True, "sharded": True}
    assert_same(whole, train(folder, tmp_path, columns, loss=loss, **savers))
    assert_same(whole, train(folder, tmp_path, repacked(columns), loss=loss, micro_batch_tokens=40))
    in_bf16, _ = train(folder, tmp_path, columns, loss=loss, compute_dtype="bf16", sharded=True)
    assert in_bf16[0].router_aux_loss == pytest.approx(whole[0][0].router_aux_loss, rel=0.02)
    without = train(folder, tmp_path, columns)
    (*_, evened), (*_, plain) = ([step.router_aux_loss or 0.0 for step in metrics] for metrics, _ in (whole, without))
    assert plain > evened > 2, "two experts a token"
    for step in whole[0]:
        assert step.loss == pytest.approx((step.policy_loss or 0.0) + 0.5 * (step.router_aux_loss or 0.0))
    assert [step.loss for step in without[0]] == [step.policy_loss for step in without[0]]


def test_the_loss_of_a_router_needs_experts(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"router_aux_loss_coef: 0.1, for a model without experts \(qwen2\)"):
        train(checkpoint, tmp_path, tree_batch(1, [1]), loss=LossConfig(router_aux_loss_coef=0.1))


def test_the_groups_of_group_mean_are_whole_where_rows_cut_them(checkpoint: Path, tmp_path: Path) -> None:
    """Groups of 4 + 8 + 4 and of 2 tokens with advantages 1, -2, 0.5 and 3; a row of 16 cuts the first in two. On
    policy the loss is minus the mean over groups of the token mean: -((4 - 16 + 2) / 16 + 3) / 2 = -1.1875."""
    first = [Branch([1 + i, *range(2, 2 + length - 1)], [0.0] * length, advantage)
             for i, (length, advantage) in enumerate(((4, 1.0), (8, -2.0), (4, 0.5)))]  # fmt: skip
    given = [Group([10, 11, 12], first), Group([20, 21], [Branch([30, 31], [0.0] * 2, 3.0)])]
    loss = LossConfig(aggregation="group_mean", old_logprobs="trainer")
    outcomes: list[tuple[list[StepMetrics], dict[str, torch.Tensor]]] = []
    for row_tokens in (16, 64):
        packed, facts = pack_groups(given, PackConfig(row_tokens=row_tokens))
        assert facts.split_groups == int(row_tokens == 16)
        (tmp_path / "packed").write_bytes(packed.to_bytes())
        columns = {name: tensor.numpy() for name, tensor in load_file(tmp_path / "packed").items()}
        outcomes.append(train(checkpoint, tmp_path, columns, epochs=1, loss=loss, micro_batch_tokens=12))
        assert outcomes[-1][0][0].policy_loss == pytest.approx(-1.1875, abs=1e-5)
    assert_same(outcomes[0], outcomes[1])


@pytest.mark.parametrize(
    "aggregation", long_except(["token_mean", "sequence_mean", "group_mean", "inverse_length"], "group_mean")
)
def test_divided_rows_do_not_matter(checkpoint: Path, tmp_path: Path, aggregation: str) -> None:
    """Two groups of four completions in one row, then in 4 rows and in 8: the same loss, gradient and weights."""
    draw = np.random.default_rng(4)
    given: list[Group] = []
    for _ in range(2):
        lengths = draw.integers(2, 9, size=4).tolist()
        branches = [
            Branch(draw.integers(VOCAB, size=n).tolist(), draw.normal(-4.0, 0.3, size=n).tolist(), draw.normal())
            for n in lengths
        ]
        given.append(Group(draw.integers(VOCAB, size=6).tolist(), branches))
    loss = LossConfig(aggregation=aggregation, entropy_coef=0.02)  # pyright: ignore[reportArgumentType]
    outcomes: list[tuple[list[StepMetrics], dict[str, torch.Tensor]]] = []
    for multiple, rows in ((1, 1), (4, 4), (8, 8)):
        packed, facts = pack_groups(given, PackConfig(row_tokens=128, rows_multiple=multiple))
        assert facts.rows == rows
        columns = {name: getattr(packed, name) for name in packed.dtypes()}
        outcomes.append(train(checkpoint, tmp_path, columns, loss=loss, micro_batch_tokens=20))
    assert_same(outcomes[0], outcomes[1])
    assert_same(outcomes[0], outcomes[2])


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "group_mean", "inverse_length"])
@pytest.mark.parametrize("row_tokens", [24, 200])
def test_tokens_of_a_tool_are_read_and_not_learned(
    checkpoint: Path, tmp_path: Path, aggregation: str, row_tokens: int
) -> None:
    """The loss is that of each completion by itself: tool tokens are in its context, and in no mean or ratio."""
    draw = np.random.default_rng(3)
    groups: list[Group] = []
    for _ in range(3):
        branches: list[Branch] = []
        for _ in range(4):
            by_tool = [author for author in (False, True, False, True, False) for _ in range(draw.integers(1, 4))]
            logprobs = [0.0 if told else draw.normal(-4.0, 0.3) for told in by_tool]
            tokens = draw.integers(VOCAB, size=len(by_tool)).tolist()
            branches.append(Branch(tokens, logprobs, draw.normal(), by_tool))
        groups.append(Group(draw.integers(VOCAB, size=5).tolist(), branches))
    packed, facts = pack_groups(groups, PackConfig(row_tokens=row_tokens))
    assert facts.split_groups == (3 if row_tokens == 24 else 0) and not facts.overlong_completions
    columns = {name: getattr(packed, name) for name in packed.dtypes()}
    loss = LossConfig(kind="reinforce", aggregation=aggregation)  # pyright: ignore[reportArgumentType]
    (step,), _ = train(checkpoint, tmp_path, columns, epochs=1, loss=loss)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    losses: list[list[torch.Tensor]] = []
    gaps: list[torch.Tensor] = []
    for group in groups:
        losses.append([])
        for branch in group.branches:
            ids = torch.tensor([[*group.prompt, *branch.tokens]])
            with torch.no_grad():
                scores = torch.log_softmax(model(ids).logits[0, len(group.prompt) - 1 : -1], -1)
            own = ~torch.tensor(branch.by_tool)
            gap = scores.gather(1, torch.tensor(branch.tokens)[:, None])[own, 0] - torch.tensor(branch.logprobs)[own]
            losses[-1].append(-torch.exp(gap) * float(branch.advantages[0]))
            gaps.append(gap)
    completions = [one for of_group in losses for one in of_group]
    every, count = torch.cat(completions), sum(len(one) for one in completions)
    expected = {
        "token_mean": every.mean(),
        "sequence_mean": torch.stack([one.mean() for one in completions]).mean(),
        "group_mean": torch.stack([torch.cat(of_group).mean() for of_group in losses]).mean(),
        "inverse_length": torch.stack([one.mean() for one in completions]).mean(),
    }[aggregation]
    assert (step.loss_tokens, facts.completion_tokens) == (count, count)
    assert step.policy_loss == pytest.approx(float(expected), rel=1e-4)
    assert step.ratio_max == pytest.approx(float(torch.exp(torch.cat(gaps)).max()), rel=1e-4)
    assert step.ratio_mean == pytest.approx(float(torch.exp(torch.cat(gaps)).mean()), rel=1e-4)


def test_a_loss_with_a_temperature_of_its_own(checkpoint: Path, other: Path, tmp_path: Path) -> None:
    """Its ratio compares log-probabilities of its own temperature, whatever the sampler's, which therefore say nothing
    about the gap between sampler and trainer; the reference has that temperature, too."""
    columns = tree_batch(4, [2, 2])
    loss = LossConfig(temperature=0.5, temperature_of="loss", old_logprobs="trainer", kl_coef=0.1)
    (same,), _ = train(checkpoint, tmp_path, columns, epochs=1, loss=loss, reference=checkpoint)
    assert (same.ratio_mean, same.ratio_max, same.clip_high_fraction) == (1.0, 1.0, 0.0)
    assert same.kl == pytest.approx(0.0, abs=1e-7)
    assert same.sampler_gap_mean is same.sampler_gap_max is same.sampler_ratio_mean is same.sampler_ess is None
    (measured,), _ = train(checkpoint, tmp_path, columns, epochs=1, loss=loss, reference=other)
    path = tmp_path / "batch.safetensors"
    new, reference = (logprobs_of(folder, path, 0.5) for folder in (checkpoint, other))
    gap = new - reference
    assert measured.kl == pytest.approx(float((torch.exp(-gap) + gap - 1).mean()), rel=1e-4)


def test_the_clamp_of_the_divergence_is_in_the_loss(checkpoint: Path, other: Path, tmp_path: Path) -> None:
    columns = tree_batch(5, [1, 2])
    loss = LossConfig(kl_coef=0.5, kl_clamp=0.25)
    (metrics,), _ = train(checkpoint, tmp_path, columns, epochs=1, reference=other, loss=loss)
    new, reference = (logprobs_of(folder, tmp_path / "batch.safetensors") for folder in (checkpoint, other))
    estimate = torch.exp(reference - new) + new - reference - 1
    assert 0 < int((estimate > 0.25).sum()) < estimate.numel()
    expected = float(estimate.clamp(max=0.25).mean())
    assert metrics.kl == pytest.approx(expected, rel=1e-4)
    assert metrics.policy_loss is not None
    assert metrics.loss == pytest.approx(metrics.policy_loss + 0.5 * expected, rel=1e-4)


def test_sharded_equals_plain(checkpoint: Path, tmp_path: Path) -> None:
    columns = tree_batch(2, [2, 1, 2], steps=2)
    assert_same(train(checkpoint, tmp_path, columns), train(checkpoint, tmp_path, columns, sharded=True))


def test_bf16_compute_keeps_float32_masters(checkpoint: Path, tmp_path: Path) -> None:
    columns = tree_batch(2, [2, 1, 2])
    exact, rounded = (train(checkpoint, tmp_path, columns, compute_dtype=dtype) for dtype in ("fp32", "bf16"))
    sharded = train(checkpoint, tmp_path, columns, compute_dtype="bf16", sharded=True)
    assert all(tensor.dtype == torch.float32 for tensor in rounded[1].values())
    for other in (rounded, sharded):
        assert other[0][0].grad_norm == pytest.approx(exact[0][0].grad_norm, rel=0.05)
    moved = torch.cat([(rounded[1][name] - sharded[1][name]).abs().view(-1) for name in exact[1]])
    assert moved.mean() < 1e-4


def test_trainer_logprobs_make_the_first_ratio_one(checkpoint: Path, tmp_path: Path) -> None:
    columns = tree_batch(4, [2, 2], steps=2)
    loss = LossConfig(old_logprobs="trainer", importance_correction="token_truncate", importance_cap=2.0)
    metrics, _ = train(checkpoint, tmp_path, columns, loss=loss, epochs=2)
    assert metrics[0].ratio_mean == metrics[0].ratio_max == 1.0
    assert (metrics[1].ratio_max or 0.0) > 1.0, (
        "the second mini-batch sees moved weights, its old log-probabilities do not"
    )
    assert all(step.sampler_gap_mean is not None for step in metrics), "the gap is about the starting weights"
    assert metrics[0].sampler_gap_mean == pytest.approx(metrics[2].sampler_gap_mean)


def with_logprobs_of(checkpoint: Path, columns: dict[str, NDArray[Any]], path: Path, more: float) -> None:
    """Makes the sampler's log-probabilities of a batch of two rows those of a checkpoint plus `more`."""
    save_file(columns, path)
    weights = TrainedWeights(read_shape(checkpoint), TrainHardware(compute_dtype="fp32"), CPU, sharded=False)
    weights.load_checkpoint(checkpoint)
    flat = TrainerBatch(path, VOCAB).flat([0, 1])
    inputs = weights.policy.inputs(flat, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        logprobs, *_ = weights.policy(inputs, 1.0)
    columns["sampler_logprobs"].reshape(-1)[flat.addresses.numpy()] = (logprobs + more).numpy()


def test_a_loss_of_texts_is_corrected_by_the_starting_weights(checkpoint: Path, tmp_path: Path) -> None:
    """The sampler had them, so every factor is 1, also once the weights have moved."""
    columns = tree_batch(5, [1, 2])
    with_logprobs_of(checkpoint, columns, tmp_path / "batch.safetensors", 0.0)
    plain, _ = train(checkpoint, tmp_path, columns, epochs=3, loss=LossConfig(kind="cross_entropy"))
    correcting = {"importance_correction": "token_truncate", "importance_cap": 1e6, "old_logprobs": "trainer"}
    loss = LossConfig.model_validate({"kind": "cross_entropy", **correcting})
    corrected, _ = train(checkpoint, tmp_path, columns, epochs=3, loss=loss)
    assert (plain[2].loss or 0.0) < (plain[0].loss or 0.0) - 0.01
    assert [step.loss for step in corrected] == pytest.approx([step.loss for step in plain], abs=1e-5)


def test_sampler_gap_is_that_of_the_starting_weights(checkpoint: Path, tmp_path: Path) -> None:
    """Sampler log-probabilities set 0.125 above the trainer's: gap 0.125, ratio exp(-0.125)."""
    columns = tree_batch(5, [1, 2])
    with_logprobs_of(checkpoint, columns, tmp_path / "batch.safetensors", 0.125)
    metrics, _ = train(checkpoint, tmp_path, columns, epochs=1)
    assert metrics[0].sampler_gap_mean == pytest.approx(0.125, abs=1e-5)
    assert metrics[0].ratio_mean == pytest.approx(np.exp(-0.125), abs=1e-5)


def test_the_divergence_from_another_model_is_in_the_loss(checkpoint: Path, other: Path, tmp_path: Path) -> None:
    columns = tree_batch(5, [1, 2])
    measured, _ = train(checkpoint, tmp_path, columns, epochs=1, reference=other)
    punished, _ = train(checkpoint, tmp_path, columns, epochs=1, reference=other, loss=LossConfig(kl_coef=0.5))
    new, reference = (logprobs_of(folder, tmp_path / "batch.safetensors") for folder in (checkpoint, other))
    gap = new - reference
    expected = float((torch.exp(-gap) + gap - 1).mean())
    assert measured[0].kl == pytest.approx(expected, rel=1e-4) == pytest.approx(punished[0].kl, rel=1e-4)
    assert measured[0].loss == pytest.approx(measured[0].policy_loss)
    assert punished[0].loss == pytest.approx((measured[0].loss or 0.0) + 0.5 * expected, rel=1e-4)
    assert punished[0].grad_norm != pytest.approx(measured[0].grad_norm, rel=0.01)


def test_the_divergence_from_the_start_begins_at_0(checkpoint: Path, tmp_path: Path) -> None:
    columns, loss = tree_batch(5, [1, 2]), LossConfig(kl_coef=0.5)
    plain = train(checkpoint, tmp_path, columns, loss=loss, reference=checkpoint)
    assert plain[0][0].kl == pytest.approx(0.0, abs=1e-7)
    assert (plain[0][1].kl or 0.0) > 1e-4, "the second step sees moved weights"
    assert_same(plain, train(checkpoint, tmp_path, columns, loss=loss, reference=checkpoint, sharded=True))
    assert train(checkpoint, tmp_path, columns)[0][0].kl is None


def test_a_reference_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "alien", "Llama", vocab_size=VOCAB + 1)
    with pytest.raises(BadInputError, match="102 token ids"):
        load_reference(tmp_path / "alien", VOCAB, TrainHardware(), CPU, sharded=False)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_average_reference(checkpoint: Path, tmp_path: Path, sharded: bool) -> None:
    """Old weights w, new w + 1, decay 0.75: w + 0.25, in float32, and a reference again."""
    weights = TrainedWeights(read_shape(checkpoint), TrainHardware(), CPU, sharded)
    weights.load_checkpoint(checkpoint)
    with torch.no_grad():
        for p in weights.masters.values():
            p.add_(1.0)
    weights.save_average(checkpoint, 0.75, tmp_path / "average")
    old, mean = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "average"))
    assert old.keys() == mean.keys()
    for name, tensor in mean.items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, old[name].float() + 0.25, atol=1e-6, rtol=1e-6)
    load_reference(tmp_path / "average", VOCAB, TrainHardware(), CPU, sharded)


def test_the_sampler_gap_by_hand() -> None:
    """Trainer over sampler 2, 1, 1, 1: mean 1.25, effective share 5^2 / (4 x 7)."""
    zeros = torch.zeros(4)
    marks = torch.zeros(4, dtype=torch.bool)
    sums = StepSums(CPU)
    gap = torch.log(torch.tensor([2.0, 1.0, 1.0, 1.0]))
    for part in (slice(0, 1), slice(1, 4)):
        token = TokenLoss(zeros[part], zeros[part], marks[part], marks[part])
        loss = StepLoss(zeros.sum(), *token_sums(token, zeros[part], gap[part]))
        sums.add(loss, counted=True, tokens=9)
        sums.add(loss, counted=False, tokens=9)
    assert sums.reduce(torch.tensor(3.0)) == 3.0
    metrics = gap_metrics(sums.sums, sums.maxima)
    assert metrics["sampler_gap_mean"] == pytest.approx(np.log(2) / 4)
    assert metrics["sampler_gap_max"] == pytest.approx(np.log(2))
    assert (metrics["sampler_ratio_mean"], metrics["sampler_ratio_max"]) == pytest.approx((1.25, 2.0))
    assert metrics["sampler_ess"] == pytest.approx(25 / 28)
    assert (sums.sums["tokens"], sums.sums["gap_tokens"]) == (18, 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dual_clip": 3.0, "kind": "cispo"}, "dual_clip bounds"),
        (
            {"importance_floor": 3.0, "importance_correction": "token_mask", "old_logprobs": "trainer"},
            "above importance_cap",
        ),
        ({"importance_correction": "sequence_mask"}, "needs old_logprobs"),
        ({"temperature_of": "loss"}, "temperature_of 'loss' needs old_logprobs = 'trainer'"),
        ({"kl_clamp": 0.0}, "greater than 0"),
        ({"constant_tokens": 3}, "if, and only if"),
    ],
)
def test_losses_that_contradict_themselves(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LossConfig.model_validate(settings)


def test_masked_tokens_change_nothing(checkpoint: Path, tmp_path: Path) -> None:
    columns = tree_batch(6, [2, 2])
    first = columns["segment_ids"] == columns["segment_ids"][0][columns["completion_mask"][0] > 0][0]
    columns["completion_mask"][first] = 0
    changed = {name: column.copy() for name, column in columns.items()}
    changed["advantages"][first] = 100.0
    assert_same(train(checkpoint, tmp_path, columns), train(checkpoint, tmp_path, changed), tolerance=1e-9)


def test_state_round_trip_is_exact(checkpoint: Path, tmp_path: Path) -> None:
    layout = TrainHardware(compute_dtype="fp32")
    weights = TrainedWeights(read_shape(checkpoint), layout, CPU, sharded=False)
    weights.load_checkpoint(checkpoint)
    for p in weights.masters.values():
        p.grad = torch.randn_like(p)
    weights.step(OptimizerConfig(), 0.01, weights.gradient_norm())
    weights.save_state(tmp_path / "state")
    for sharded in (False, True):
        other = TrainedWeights(read_shape(checkpoint), layout, CPU, sharded)
        other.load_state(tmp_path / "state")
        for name, p in weights.masters.items():
            q = other.masters[name]
            moments = [(weights.optimizer.state[p][key], other.optimizer.state[q][key]) for key in MOMENTS]
            for a, b in [(p, q), *moments]:
                assert torch.equal(a, b.full_tensor() if isinstance(b, DTensor) else b)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("Connection closed by peer"), RuntimeError),
        (
            CheckpointException("load", {1: (MemoryError("no memory"), traceback.StackSummary())}),
            RuntimeError,
        ),
        (CheckpointException("load", {0: (ValueError("size mismatch"), traceback.StackSummary())}), BadInputError),
    ],
)
def test_a_lost_process_or_a_lack_of_memory_is_no_damaged_state(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    """torch has the errors of files in a `CheckpointException`, and gloo and NCCL raise a plain RuntimeError."""

    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(master_weights, "load", load)
    weights = TrainedWeights(read_shape(checkpoint), TrainHardware(compute_dtype="fp32"), CPU, sharded=False)
    with pytest.raises(raised, match=r"(?s)closed by peer|no memory|unreadable .*size mismatch"):
        weights.load_state(tmp_path / "state")


@pytest.mark.parametrize("sharded", [False, True])
def test_a_gradient_that_is_not_finite_changes_nothing(checkpoint: Path, sharded: bool) -> None:
    weights = TrainedWeights(read_shape(checkpoint), TrainHardware(compute_dtype="fp32"), CPU, sharded)
    weights.load_checkpoint(checkpoint)
    for p in weights.masters.values():
        p.grad = torch.full_like(p, torch.inf)
    before = {name: p.detach().clone() for name, p in weights.masters.items()}
    assert weights.gradient_norm() == torch.inf
    weights.drop_gradient()
    assert all(p.grad is None for p in weights.masters.values()), "the next step does not add to it"
    assert all(torch.equal(p, before[name]) for name, p in weights.masters.items())
    assert all(state["step"] == 0 for state in weights.optimizer.state.values())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("tokens", VOCAB, "ids 0 to 101"), ("advantages", np.nan, "NaN"), ("parent_ids", 77, "without its prompt")],
)
def test_broken_batches_are_refused(checkpoint: Path, tmp_path: Path, name: str, value: float, message: str) -> None:
    columns = tree_batch(7, [1, 1])
    columns["tokens"][0, 0] = 0
    columns[name][0, np.flatnonzero(columns["completion_mask"][0])[-1]] = value
    with pytest.raises(BadInputError, match=message):
        train(checkpoint, tmp_path, columns)


def test_rows_are_shared_out_evenly() -> None:
    """Rows of 6, 5, 4, 3, 2 tokens on two processes: 6 3 2 and 5 4; micro-batches of at most 9."""
    assert micro_batches([0, 1, 2, 3, 4], [6, 5, 4, 3, 2], 2, 9) == [[[0, 3], [4]], [[1, 2], []]]
    assert micro_batches([1], [6, 5], 2, 1) == [[[1]], [[]]]
