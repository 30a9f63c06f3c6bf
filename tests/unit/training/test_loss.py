"""Token losses and shares against numbers worked by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.grpo.aggregation import token_shares
from stages.grpo.kl import divergence
from stages.grpo.loss import TokenLoss, token_loss, value_loss
from stages.grpo.ratios import correction_factors

LENGTHS = [2, 4, 4, 8]
SEQUENCES = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))


def losses(kind: Any, new: torch.Tensor, advantages: torch.Tensor, **changes: Any) -> TokenLoss:
    """Token losses with clip 0.2 / 0.28; by default old log-probabilities 0, each token a completion."""
    count = new.numel()
    settings: dict[str, Any] = {
        "old": torch.zeros(count), "sequences": torch.arange(count),
        "clip_low": 0.2, "clip_high": 0.28, **changes,
    }  # fmt: skip
    return token_loss(kind, new, advantages=advantages, **settings)


def single(kind: str, ratio: float, advantage: float, **changes: Any) -> tuple[float, float, bool, bool]:
    """Loss of one token, its gradient by the new log-probability, and its clip marks."""
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    one = losses(kind, new, torch.tensor([advantage]), **changes)
    one.loss.sum().backward()
    assert new.grad is not None
    return one.loss.item(), new.grad.item(), bool(one.clipped_low), bool(one.clipped_high)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "low", "high"),
    [
        (1.3, 1.0, -1.28, 0.0, False, True),
        (1.25, 1.0, -1.25, -1.25, False, False),
        (0.7, -1.0, 0.8, 0.0, True, False),
        (1.5, -1.0, 1.5, 1.5, False, False),
        (0.5, 2.0, -1.0, -1.0, False, False),
        (1.0, -0.5, 0.5, 0.5, False, False),
    ],
)
def test_clip_is_one_sided(ratio: float, advantage: float, loss: float, gradient: float, low: bool, high: bool) -> None:
    result = single("ppo_clip", ratio, advantage)
    assert result[:2] == pytest.approx((loss, gradient), abs=1e-6)
    assert result[2:] == (low, high)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "high"),
    [
        (4.0, -1.0, 3.0, 0.0, True),
        (2.5, -1.0, 2.5, 2.5, False),
        (4.0, -2.0, 6.0, 0.0, True),
        (4.0, 1.0, -1.28, 0.0, True),
    ],
)
def test_dual_clip_bounds_the_loss_of_a_bad_token(
    ratio: float, advantage: float, loss: float, gradient: float, high: bool
) -> None:
    result = single("ppo_clip", ratio, advantage, dual_clip=3.0)
    assert result[:2] == pytest.approx((loss, gradient), abs=1e-5)
    assert result[2:] == (False, high)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"), [(1.5, 1.0, 1.28), (1.5, -1.0, 1.28), (0.5, 2.0, 0.8), (1.1, -1.0, 1.1)]
)
def test_cispo_keeps_the_gradient_of_clipped_tokens(ratio: float, advantage: float, clipped: float) -> None:
    """Loss -sg(clip(rho)) A log p, so the gradient is -clip(rho) A whatever the clip did."""
    loss, gradient, low, high = single("cispo", ratio, advantage)
    assert loss == pytest.approx(-clipped * advantage * math.log(ratio), abs=1e-5)
    assert gradient == pytest.approx(-clipped * advantage, abs=1e-5)
    assert (low, high) == (ratio < 0.8, ratio > 1.28)


@pytest.mark.parametrize(("gap", "factor"), [(0.0, 1.0), (0.2, 0.961043), (1.0, 0.419974)])
def test_tanh(gap: float, factor: float) -> None:
    """-tanh(d) A, whose gradient is -A (1 - tanh(d)^2)."""
    loss, gradient, _, _ = single("tanh", math.exp(gap), 2.0)
    assert loss == pytest.approx(-2.0 * math.tanh(gap), abs=1e-6)
    assert gradient == pytest.approx(-2.0 * factor, abs=1e-5)


def test_gspo_takes_one_ratio_a_completion() -> None:
    """Two completions, interleaved. Log-ratios 0.1 0.3: ratio exp(0.2) = 1.2214, under 1.28; -0.5 -0.1 0: exp(-0.2) =
    0.81873, over 0.8. With A = 1 and -1 the aggregated loss is -(1.22140 - 0.81873) / 2, and each token's share of the
    gradient -rho A / (2 L)."""
    new = torch.tensor([0.1, -0.5, 0.3, -0.1, 0.0], requires_grad=True)
    sequences = torch.tensor([7, 3, 7, 3, 3])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0])
    token = losses("gspo", new, advantages, sequences=sequences)
    assert token.ratio.tolist() == pytest.approx([1.221403, 0.818731, 1.221403, 0.818731, 0.818731], abs=1e-6)
    loss = (token.loss * token_shares("sequence_mean", sequences)).sum()
    assert loss.item() == pytest.approx(-0.201336, abs=1e-6)
    loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-0.305351, 0.136455, -0.305351, 0.136455, 0.136455], abs=1e-6)


def test_gspo_clips_whole_completions() -> None:
    """Log-ratios 0 and 0.6: ratio exp(0.3) = 1.35 over 1.28, so neither token moves, not even the one at ratio 1."""
    new = torch.tensor([0.0, 0.6], requires_grad=True)
    token = losses("gspo", new, torch.ones(2), sequences=torch.zeros(2, dtype=torch.long))
    assert token.loss.tolist() == pytest.approx([-1.28, -1.28])
    assert token.clipped_high.all()
    token.loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0]


def test_reinforce_has_no_clip_and_cross_entropy_no_advantage() -> None:
    new, old = torch.tensor([math.log(0.5), math.log(0.1)]), torch.tensor([math.log(0.25), math.log(0.1)])
    advantages = torch.tensor([3.0, -2.0])
    plain = losses("reinforce", new, advantages, old=old)
    assert plain.loss.tolist() == pytest.approx([-6.0, 2.0])
    assert not plain.clipped_low.any() and not plain.clipped_high.any()
    supervised = losses("cross_entropy", new, advantages, old=old)
    assert supervised.loss.tolist() == pytest.approx([math.log(2.0), math.log(10.0)])


@pytest.mark.parametrize(
    ("kind", "floor", "expected"),
    [
        ("token_truncate", 0.0, [1.25, 2.0, 0.5, 1.5]),
        ("token_truncate", 0.75, [1.25, 2.0, 0.75, 1.5]),
        ("token_mask", 0.0, [1.25, 0.0, 0.5, 1.5]),
        ("token_mask", 0.75, [1.25, 0.0, 0.0, 1.5]),
        ("sequence_truncate", 0.0, [0.625, 2.0, 0.625, 2.0]),  # 1.25 x 0.5 and 5 x 1.5
        ("sequence_mask", 0.0, [0.625, 0.0, 0.625, 0.0]),
        ("sequence_mask", 0.75, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_corrections_of_the_sampler_gap(kind: Any, floor: float, expected: list[float]) -> None:
    """Importances 1.25, 5, 0.5, 1.5 of two completions, cap 2."""
    old, sampler = torch.log(torch.tensor([0.5, 0.5, 0.1, 0.6])), torch.log(torch.tensor([0.4, 0.1, 0.2, 0.4]))
    sequences = torch.tensor([4, 9, 4, 9])
    factors = correction_factors(kind, old, sampler, sequences, floor, 2.0)
    assert factors is not None
    assert factors.tolist() == pytest.approx(expected)
    corrected = losses("reinforce", old, torch.ones(4), old=old, correction=factors)
    assert corrected.loss.tolist() == pytest.approx([-factor for factor in expected])
    assert correction_factors("none", old, sampler, sequences, 0.0, 2.0) is None


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", 0.693147, 1.0),
        ("k2", 0.240227, 0.693147),
        ("k3", 0.193147, 0.5),  # 1 - exp(-d)
        ("unbiased_k3", 0.096574, 0.346574),  # at rho = 1/2: rho k3; its gradient rho (k3 + 1 - exp(-d)) = rho d
    ],
)
def test_divergence_estimators(estimator: Any, value: float, gradient: float) -> None:
    """p = 0.5 where the reference has 0.25 and the old weights had 1."""
    new = torch.tensor([math.log(0.5)], requires_grad=True)
    estimate = divergence(estimator, new, torch.tensor([math.log(0.25)]), torch.zeros(1))
    estimate.sum().backward()
    assert new.grad is not None
    assert (estimate.item(), new.grad.item()) == pytest.approx((value, gradient), abs=1e-6)


@pytest.mark.parametrize(
    ("gap", "plain", "plain_gradient", "clamped", "clamped_gradient"),
    [
        (-8.0, 2971.957987, -2979.957987, 10.0, 0.0),  # exp(8) - 8 - 1, 1 - exp(8)
        (-2.7, 11.179732, -13.879732, 10.0, 0.0),  # exp(2.7) - 2.7 - 1
        (-2.6, 9.863738, -12.463738, 9.863738, -12.463738),  # exp(2.6) - 2.6 - 1
        (-1.0, 0.718282, -1.718282, 0.718282, -1.718282),
        (10.5, 9.500028, 0.999972, 9.500028, 0.999972),
        (12.0, 11.000006, 0.999994, 10.0, 0.0),
    ],
)
def test_k3_is_clamped_with_its_gradient(
    gap: float, plain: float, plain_gradient: float, clamped: float, clamped_gradient: float
) -> None:
    """The clamp is on exp(-d) + d - 1, not on d: a token at d = -8 adds 10 and no gradient."""
    for clamp, value, gradient in ((None, plain, plain_gradient), (10.0, clamped, clamped_gradient)):
        new = torch.tensor([gap], requires_grad=True)
        estimate = divergence("k3", new, torch.zeros(1), torch.zeros(1), clamp)
        estimate.sum().backward()
        assert new.grad is not None
        assert (estimate.item(), new.grad.item()) == pytest.approx((value, gradient), rel=1e-5, abs=1e-6)


def test_a_clamp_holds_estimates_that_can_be_negative() -> None:
    new, reference, old = torch.tensor([-3.0, -1.0, 2.0]), torch.zeros(3), torch.zeros(3)
    assert divergence("k1", new, reference, old, 1.5).tolist() == [-1.5, -1.0, 1.5]
    assert divergence("k2", new, reference, old, 1.5).tolist() == [1.5, 0.5, 1.5]


def test_a_clamped_divergence_of_a_broken_token_has_no_gradient() -> None:
    new = torch.tensor([-1e9], requires_grad=True)
    divergence("k3", new, torch.zeros(1), torch.zeros(1), 10.0).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [0.0]


def test_at_the_reference_every_divergence_is_0() -> None:
    new = torch.tensor([-0.3, -7.0])
    for estimator in ("k1", "k2", "k3", "unbiased_k3"):
        assert divergence(estimator, new, new, new).tolist() == [0.0, 0.0]


def test_broken_token_keeps_the_loss_finite() -> None:
    one = losses("reinforce", torch.zeros(1), torch.ones(1), old=torch.tensor([-1e9]))
    assert one.loss.item() == pytest.approx(-math.exp(20.0))
    assert divergence("k3", torch.tensor([-1e9]), torch.zeros(1), torch.zeros(1)).item() < math.exp(20.0)


@pytest.mark.parametrize(
    ("aggregation", "constant", "advantages", "loss", "coefficients"),
    [
        ("sequence_mean", None, [1.5, -0.5, -0.5, -0.5], 0.0, [0.1875, -0.03125, -0.03125, -0.015625]),
        ("token_mean", None, [1.5, -0.5, -0.5, -0.5], 0.277778, [0.083333, -0.027778, -0.027778, -0.027778]),
        ("token_mean", None, [1.73205, -0.57735, -0.57735, -0.57735], 0.32075, None),
        ("constant", 8, [0.75, -0.25, -0.25, -0.25], 0.078125, [0.0234375, -0.0078125, -0.0078125, -0.0078125]),
    ],
)
def test_aggregation_of_one_right_answer_in_four(
    aggregation: str, constant: int | None, advantages: list[float], loss: float, coefficients: list[float] | None
) -> None:
    """Rewards 1 0 0 0, lengths 2 4 4 8, ratio 1."""
    each = torch.tensor(advantages)[SEQUENCES]
    shares = token_shares(aggregation, SEQUENCES, constant)  # pyright: ignore[reportArgumentType]
    token = losses("ppo_clip", torch.zeros(18), each)
    assert (token.loss * shares).sum().item() == pytest.approx(loss, abs=1e-5)
    if coefficients is not None:
        firsts = [0, 2, 6, 10]
        assert (each * shares)[firsts].tolist() == pytest.approx(coefficients, abs=1e-6)


def test_group_mean_is_the_mean_of_the_token_means_of_groups() -> None:
    """Two groups: completions of 1 and 3 tokens, of 2 and 6; tokens interleaved. A token of the first group weighs
    1 / (2 x 4), one of the second 1 / (2 x 8). With losses 1 in the first and 3 in the second group the aggregate is
    (1 + 3) / 2 = 2, where the token mean is (4 x 1 + 8 x 3) / 12 = 2.3333."""
    sequences = torch.tensor([5, 9, 9, 9, 2, 2, 7, 7, 7, 7, 7, 7])
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1])
    order = torch.tensor([4, 0, 6, 1, 7, 2, 8, 9, 3, 10, 5, 11])
    shares = token_shares("group_mean", sequences[order], group_of_token=groups[order])
    assert shares.tolist() == [0.125 if group == 0 else 0.0625 for group in groups[order].tolist()]
    each = 1.0 + 2.0 * groups[order]
    assert (each * shares).sum().item() == pytest.approx(2.0)
    assert (each * token_shares("token_mean", sequences)).sum().item() == pytest.approx(28 / 12)
    assert (each * token_shares("sequence_mean", sequences[order])).sum().item() == pytest.approx(2.0)
    uneven = 1.0 + 2.0 * (sequences[order] == 2)
    assert (uneven * shares).sum().item() == pytest.approx(1 + 2 * 2 / 16), "two of the second group's 8 tokens"
    assert (uneven * token_shares("sequence_mean", sequences[order])).sum().item() == pytest.approx(1 + 2 / 4)
    with pytest.raises(ValueError, match="needs group_of_token"):
        token_shares("group_mean", sequences)


def test_inverse_length_has_a_mean_weight_of_one() -> None:
    """Lengths 2 and 4, mean 3: weights 1.5 and 0.75, over 6 tokens. In one step that is the sequence mean; a step that
    holds only the shorter of them divides by its own 2 tokens."""
    sequences = torch.tensor([0, 0, 1, 1, 1, 1])
    shares = token_shares("inverse_length", sequences, mean_length=3.0)
    assert (shares * 6).tolist() == pytest.approx([1.5, 1.5, 0.75, 0.75, 0.75, 0.75])
    assert torch.allclose(shares, token_shares("sequence_mean", sequences))
    assert token_shares("inverse_length", sequences[:2], mean_length=3.0).tolist() == pytest.approx([0.75, 0.75])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.randoms())
def test_shares_do_not_depend_on_the_order_of_tokens(lengths: list[int], random: object) -> None:
    sequences = torch.repeat_interleave(torch.arange(len(lengths)) * 7, torch.tensor(lengths))
    order = torch.randperm(sequences.numel())
    for aggregation, constant in (("token_mean", None), ("sequence_mean", None), ("constant", 5)):
        shares = token_shares(aggregation, sequences, constant)  # pyright: ignore[reportArgumentType]
        assert torch.equal(token_shares(aggregation, sequences[order], constant), shares[order])  # pyright: ignore[reportArgumentType]
        if aggregation != "constant":
            assert shares.sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "low", "high"),
    [
        (0.25, 2.0, -0.5, -0.5, False, False),
        (3.9, -1.0, 3.9, 3.9, False, False),
        (0.19, 1.0, 0.0, 0.0, True, False),
        (4.1, 1.0, 0.0, 0.0, False, True),
        (4.1, -1.0, 0.0, 0.0, False, True),
    ],
)
def test_masked_tokens_have_no_loss(
    ratio: float, advantage: float, loss: float, gradient: float, low: bool, high: bool
) -> None:
    """SAO's bounds: the ratio counts from 0.2 to 4, and a token outside is left out, whatever its advantage."""
    result = single("masked", ratio, advantage, clip_low=0.8, clip_high=3.0)
    assert result[:2] == pytest.approx((loss, gradient), abs=1e-6)
    assert result[2:] == (low, high)


def test_a_masked_infinite_ratio_gives_no_gradient_that_is_not_a_number() -> None:
    assert single("masked", math.exp(80), 1.0, clip_low=0.8, clip_high=3.0)[:2] == (0.0, 0.0)


def test_value_loss_by_hand() -> None:
    """Old 0.5, target 1. Value 0.9 is clipped to 0.7: (0.7 - 1)^2 = 0.09 is more than 0.01. Value 0.2 is clipped to
    0.3, but (0.2 - 1)^2 = 0.64 is more than 0.49. Value 0.6 is inside."""
    new = torch.tensor([0.9, 0.2, 0.6], requires_grad=True)
    old, targets = torch.full((3,), 0.5), torch.ones(3)
    loss, clipped = value_loss(new, old, targets, 0.2)
    torch.testing.assert_close(loss, torch.tensor([0.045, 0.32, 0.08]))
    assert clipped.tolist() == [True, False, False]
    loss.sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([0.0, -0.8, -0.4]))
    plain, _ = value_loss(new, old, targets, None)
    torch.testing.assert_close(plain, torch.tensor([0.005, 0.32, 0.08]))
