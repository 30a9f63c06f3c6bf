"""Token losses and shares against numbers worked by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.grpo.loss import token_loss, token_shares, truncated_importance

LENGTHS = [2, 4, 4, 8]
SEQUENCES = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))


def clipped(ratio: float, advantage: float, weight: float = 1.0) -> tuple[float, float, bool, bool]:
    """Loss and its gradient by the new log-probability, with clip 0.2 / 0.28."""
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    one = token_loss(
        "ppo_clip", new, torch.zeros(1), torch.tensor([advantage]), torch.tensor([weight]), clip_low=0.2, clip_high=0.28
    )
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
    found = clipped(ratio, advantage)
    assert found[:2] == pytest.approx((loss, gradient), abs=1e-6)
    assert found[2:] == (low, high)


def test_weight_multiplies() -> None:
    assert clipped(1.25, 1.0, weight=3.0)[0] == pytest.approx(-3.75)


def test_reinforce_has_no_clip_and_cross_entropy_no_advantage() -> None:
    new, old = torch.tensor([math.log(0.5), math.log(0.1)]), torch.tensor([math.log(0.25), math.log(0.1)])
    advantages, weights = torch.tensor([3.0, -2.0]), torch.tensor([1.0, 0.5])
    plain = token_loss("reinforce", new, old, advantages, weights, clip_low=0.2, clip_high=0.2)
    assert plain.loss.tolist() == pytest.approx([-6.0, 1.0])
    assert not plain.clipped_low.any() and not plain.clipped_high.any()
    supervised = token_loss("cross_entropy", new, old, advantages, weights, clip_low=0.2, clip_high=0.2)
    assert supervised.loss.tolist() == pytest.approx([math.log(2.0), 0.5 * math.log(10.0)])


def test_truncated_importance() -> None:
    old, sampler = torch.log(torch.tensor([0.5, 0.5, 0.1])), torch.log(torch.tensor([0.4, 0.1, 0.2]))
    assert truncated_importance(old, sampler, 2.0).tolist() == pytest.approx([1.25, 2.0, 0.5])
    corrected = token_loss(
        "reinforce", old, old, torch.ones(3), torch.ones(3), clip_low=0.2, clip_high=0.2,
        correction=truncated_importance(old, sampler, 2.0),
    )  # fmt: skip
    assert corrected.loss.tolist() == pytest.approx([-1.25, -2.0, -0.5])


def test_broken_token_keeps_the_loss_finite() -> None:
    one = token_loss(
        "reinforce", torch.zeros(1), torch.tensor([-1e9]), torch.ones(1), torch.ones(1), clip_low=0.2, clip_high=0.2
    )
    assert one.loss.item() == pytest.approx(-math.exp(20.0))


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
    token = token_loss("ppo_clip", torch.zeros(18), torch.zeros(18), each, torch.ones(18), clip_low=0.2, clip_high=0.2)
    assert (token.loss * shares).sum().item() == pytest.approx(loss, abs=1e-5)
    if coefficients is not None:
        firsts = [0, 2, 6, 10]
        assert (each * shares)[firsts].tolist() == pytest.approx(coefficients, abs=1e-6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.randoms())
def test_shares_do_not_depend_on_the_order_of_tokens(lengths: list[int], random: object) -> None:
    sequences = torch.repeat_interleave(torch.arange(len(lengths)) * 7, torch.tensor(lengths))
    order = torch.randperm(sequences.numel())
    for aggregation, constant in (("token_mean", None), ("sequence_mean", None), ("constant", 5)):
        shares = token_shares(aggregation, sequences, constant)  # pyright: ignore[reportArgumentType]
        assert torch.equal(token_shares(aggregation, sequences[order], constant), shares[order])  # pyright: ignore[reportArgumentType]
        if aggregation != "constant":
            assert shares.sum().item() == pytest.approx(1.0, abs=1e-5)
