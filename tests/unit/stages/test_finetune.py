"""The learning-rate schedule against numbers worked by hand."""

import pytest

from stages.finetune import FinetuneConfig, learning_rate_at


@pytest.mark.parametrize(
    ("settings", "iteration", "expected"),
    [
        ({"schedule": "constant"}, 7, 1.0),
        ({"schedule": "linear", "schedule_iterations": 4}, 1, 1.0),
        ({"schedule": "linear", "schedule_iterations": 4}, 4, 0.25),
        ({"schedule": "linear", "schedule_iterations": 4}, 9, 0.25),  # stays at its last positive value
        ({"schedule": "cosine", "schedule_iterations": 4}, 3, 0.5),  # (1 + cos(pi / 2)) / 2
        ({"schedule": "constant", "warmup_iterations": 4}, 1, 0.25),
        ({"schedule": "linear", "schedule_iterations": 4, "warmup_iterations": 2}, 1, 0.5),
    ],
)
def test_schedules(settings: dict[str, object], iteration: int, expected: float) -> None:
    config = FinetuneConfig.model_validate({"learning_rate": 1.0, **settings})
    assert learning_rate_at(config, iteration) == pytest.approx(expected)
