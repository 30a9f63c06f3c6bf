"""The KL coefficient over the iterations, with the numbers of STILL-3's schedule."""

import pytest
from pydantic import ValidationError

from stages.finetune import FinetuneConfig
from stages.training.schedules.kl_schedule import KlScheduleConfig, kl_coef_at


@pytest.mark.parametrize(
    ("iteration", "expected"),
    [(1, 1e-3), (126, 0.000853553), (251, 5e-4), (376, 0.000146447), (501, 0.0), (900, 0.0)],
)
def test_the_coefficient_falls_by_half_a_cosine_wave(iteration: int, expected: float) -> None:
    schedule = KlScheduleConfig(iterations=500)
    assert kl_coef_at(1e-3, schedule, iteration) == pytest.approx(expected, abs=1e-9)
    repeated = schedule.model_copy(update={"constant": 1e-3})
    assert kl_coef_at(1e-3, repeated, iteration) == pytest.approx(expected + 1e-3, abs=1e-9)
    assert kl_coef_at(1e-3, None, iteration) == 1e-3


def test_a_schedule_needs_a_coefficient() -> None:
    with pytest.raises(ValidationError, match=r"kl_schedule lowers loss\.kl_coef, but that is 0"):
        FinetuneConfig(kl_schedule=KlScheduleConfig())
