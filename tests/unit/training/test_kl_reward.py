"""The divergence as part of the reward: numbers worked by hand, and what must hold with a real trainer."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from stages.grpo.groups import Branch, Group
from stages.grpo.kl_reward import kl_in_advantages
from stages.grpo.packing import PackConfig, pack_groups
from stages.training.job import LossConfig
from stages.training.trainer_batch import TrainerBatch
from tests.support.training import assert_same, logprobs_of, repacked, train
from tests.support.trees import VOCAB, tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("loss", [0.0] * 7),
        ("token_reward", [0.6, 0.5, 0.2, -0.1, 0.3, 0.0, 0.2]),
        ("sequence_reward", [0.35, 0.35, 0.35, -0.35, -0.35, -0.35, 0.0]),
    ],
)
def test_what_comes_off_the_advantages(place: Any, expected: list[float]) -> None:
    """Completions of 0.1 + 0.3 + 0.2, -0.4 + 0.3 + 0 and 0.2 in groups 5, 5 and 8.

    From each token on: 0.6 0.5 0.2; -0.1 0.3 0; 0.2. Sums 0.6 and -0.1 have the mean 0.25; 0.2 is alone in its group.
    """
    divergences = torch.tensor([0.1, 0.3, 0.2, -0.4, 0.3, 0.0, 0.2])
    sequences, groups = torch.tensor([7, 7, 7, 3, 3, 3, 4]), torch.tensor([5, 5, 5, 5, 5, 5, 8])
    advantages = kl_in_advantages(place, divergences, sequences, groups)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_mean_of_a_group_is_over_completions_not_tokens() -> None:
    """T1's example, 0.1 0.3 0.2 to -0.1 0.1 0, whatever the lengths: here 1, 3 and 2 tokens."""
    divergences = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    sequences = torch.tensor([0, 1, 1, 1, 2, 2])
    advantages = kl_in_advantages("sequence_reward", divergences, sequences, torch.zeros(6, dtype=torch.long))
    assert advantages.tolist() == pytest.approx([-0.1, 0.1, 0.1, 0.1, 0.0, 0.0], abs=1e-7)


def test_a_group_is_known_by_its_prompt_also_where_it_is_cut(tmp_path: Path) -> None:
    """Three completions of 6 tokens behind a prompt of 4 need two rows of 16; the other group has its own."""
    given = [
        Group([1, 2, 3, 4], [Branch([5] * 6, [-1.0] * 6, 1.0)] * 3),
        Group([1, 2, 3], [Branch([5, 5], [-1.0] * 2, 1.0)] * 2),
    ]
    packed, facts = pack_groups(given, PackConfig(row_tokens=16))
    assert (facts.split_groups, len(set(packed.parent_ids[packed.parent_ids >= 0].tolist()))) == (1, 3)
    (tmp_path / "batch").write_bytes(packed.to_bytes())
    batch = TrainerBatch(tmp_path / "batch", VOCAB)
    addresses, sequences = batch.loss_sequences(list(range(batch.shape[0])))
    members: dict[int, set[int]] = defaultdict(set)
    for group, sequence in zip(batch.groups(addresses).tolist(), sequences.tolist(), strict=True):
        members[group].add(sequence)
    assert sorted(len(completions) for completions in members.values()) == [2, 3]


def test_episodes_that_begin_alike_are_groups_of_their_own(tmp_path: Path) -> None:
    """Their prompts are equal, so the batch has the numbers of their groups; other batches need none."""
    given = [Group([1, 2], [Branch([5, 5], [-1.0] * 2, 1.0)] * 2, number) for number in (7, 3, 7)]
    packed, _ = pack_groups(given, PackConfig(row_tokens=16))
    assert packed.groups is not None and not packed.groups[packed.segment_ids < 0].any()
    (tmp_path / "batch").write_bytes(packed.to_bytes())
    batch = TrainerBatch(tmp_path / "batch", VOCAB)
    addresses, sequences = batch.loss_sequences(list(range(batch.shape[0])))
    of_completions = dict(zip(sequences.tolist(), batch.groups(addresses).tolist(), strict=True))
    assert sorted(of_completions.values()) == [3, 3, 7, 7, 7, 7]
    alike, _ = pack_groups([given[0], given[2]], PackConfig(row_tokens=16))
    assert alike.groups is None


def hand_made(columns: Any, divergences: torch.Tensor, place: str) -> torch.Tensor:
    """What comes off, token by token in plain Python; divergences in address order."""
    mask = columns["completion_mask"] > 0
    sequences, parents = columns["segment_ids"][mask].tolist(), columns["parent_ids"][mask].tolist()
    prompts = {parent: tuple(columns["tokens"][(columns["segment_ids"] == parent)].tolist()) for parent in set(parents)}
    sums: dict[int, float] = defaultdict(float)
    for sequence, value in zip(sequences, divergences.tolist(), strict=True):
        sums[sequence] += value
    group_of = {sequence: prompts[parent] for sequence, parent in zip(sequences, parents, strict=True)}
    off: list[float] = []
    for place_of_token, sequence in enumerate(sequences):
        if place == "token_reward":
            later = range(place_of_token, len(sequences))
            off.append(sum(float(divergences[i]) for i in later if sequences[i] == sequence))
        else:
            group = [sums[one] for one in sums if group_of[one] == group_of[sequence]]
            off.append(sums[sequence] - sum(group) / len(group))
    return torch.tensor(off)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("place", ["token_reward", "sequence_reward"])
def test_the_loss_and_the_penalty_by_hand(
    checkpoint: Path, other: Path, tmp_path: Path, place: Any, estimator: Any
) -> None:
    """On policy with REINFORCE and a token mean the loss is minus the mean of (A - 0.5 x what comes off)."""
    columns = tree_batch(5, [1, 2])
    loss = LossConfig(kind="reinforce", old_logprobs="trainer", kl_coef=0.5, kl_place=place, kl_estimator=estimator)
    (metrics,), _ = train(checkpoint, tmp_path, columns, epochs=1, reference=other, loss=loss)
    with torch.no_grad():
        new, reference = (logprobs_of(it, tmp_path / "batch.safetensors") for it in (checkpoint, other))
    gap = new - reference
    divergences = {"k1": gap, "k2": gap.square() / 2, "k3": torch.exp(-gap) + gap - 1}[estimator]
    mask = columns["completion_mask"] > 0
    advantages = torch.from_numpy(columns["advantages"][mask])
    expected = -(advantages - 0.5 * hand_made(columns, divergences, place)).mean()
    assert metrics.policy_loss == metrics.loss == pytest.approx(expected.item(), abs=2e-5)
    completions = len(set(columns["segment_ids"][mask].tolist()))
    assert metrics.kl_penalty == pytest.approx(0.5 * divergences.sum().item() / completions, rel=1e-4)
    assert metrics.kl is not None, "it is measured as before"


def test_the_clamp_holds_a_divergence_in_the_reward(checkpoint: Path, other: Path, tmp_path: Path) -> None:
    columns = tree_batch(5, [1, 2])
    loss = LossConfig(old_logprobs="trainer", kl_coef=0.5, kl_place="token_reward", kl_clamp=0.25)
    (metrics,), _ = train(checkpoint, tmp_path, columns, epochs=1, reference=other, loss=loss)
    with torch.no_grad():
        new, reference = (logprobs_of(it, tmp_path / "batch.safetensors") for it in (checkpoint, other))
    divergences = torch.exp(reference - new) + new - reference - 1
    assert divergences.max() > 0.25
    completions = len(set(columns["segment_ids"][columns["completion_mask"] > 0].tolist()))
    expected = 0.5 * divergences.clamp(max=0.25).sum().item() / completions
    assert metrics.kl_penalty == pytest.approx(expected, rel=1e-4)


def test_of_one_token_k1_in_the_reward_is_k2_in_the_loss(checkpoint: Path, other: Path, tmp_path: Path) -> None:
    """On policy -(A - b d) grad log p = -A grad log p + b grad(d^2 / 2)."""
    columns = tree_batch(3, [3, 2], completion=(1, 2))
    settings = {"kind": "reinforce", "old_logprobs": "trainer", "kl_coef": 0.3}
    runs = [
        train(checkpoint, tmp_path, columns, epochs=1, reference=other, loss=LossConfig.model_validate(settings | more))
        for more in ({"kl_estimator": "k2"}, {"kl_estimator": "k1", "kl_place": "token_reward"})
    ]
    assert runs[0][0][0].grad_norm == pytest.approx(runs[1][0][0].grad_norm, rel=1e-4)
    for name, tensor in runs[0][1].items():
        torch.testing.assert_close(tensor, runs[1][1][name], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("place", ["token_reward", "sequence_reward"])
@pytest.mark.parametrize("old", ["sampler", "trainer"])
def test_rows_micro_batches_and_sharding_do_not_matter(
    checkpoint: Path, other: Path, tmp_path: Path, place: Any, old: Any
) -> None:
    loss = LossConfig(kl_coef=0.1, kl_place=place, old_logprobs=old)
    columns = tree_batch(1, [2, 1, 3, 1], steps=2)
    whole = train(checkpoint, tmp_path, columns, loss=loss, reference=other)
    assert_same(whole, train(checkpoint, tmp_path, columns, loss=loss, reference=other, micro_batch_tokens=10))
    assert_same(whole, train(checkpoint, tmp_path, repacked(columns), loss=loss, reference=other))
    assert_same(whole, train(checkpoint, tmp_path, columns, loss=loss, reference=other, sharded=True))
    passes = [step.kl_penalty for step in whole[0]]
    assert passes[:2] == passes[2:], "the penalty of the second pass is that of the old log-probabilities too"


def test_from_itself_nothing_comes_off(checkpoint: Path, tmp_path: Path) -> None:
    columns = tree_batch(5, [1, 2])
    loss = LossConfig(kl_coef=5.0, kl_place="sequence_reward", old_logprobs="trainer")
    trained = train(checkpoint, tmp_path, columns, epochs=1, reference=checkpoint, loss=loss)
    assert trained[0][0].kl_penalty == pytest.approx(0.0, abs=1e-5)
    plain = train(checkpoint, tmp_path, columns, epochs=1, loss=LossConfig(old_logprobs="trainer"))
    assert plain[0][0].kl_penalty is None
    assert_same(trained, plain)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"kl_estimator": "unbiased_k3"}, "k1, k2 or k3"), ({"kind": "cross_entropy"}, "reads no advantages")],
)
def test_places_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LossConfig.model_validate({"kl_place": "token_reward", **settings})
