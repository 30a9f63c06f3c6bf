"""The coefficient of the KL term over the iterations of a run."""

import math

from pydantic import Field

from artifacts.config import Config


class KlScheduleConfig(Config):
    """A coefficient that falls to 0 by half a cosine wave (STILL-3, arXiv 2503.04548)."""

    iterations: int = Field(
        default=500, ge=1, le=1_000_000, description="Number of iterations after which the wave has ended."
    )
    constant: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Added to the wave in every iteration. STILL's code adds the KL term to the loss a second time, "
        "with the full coefficient; this repeats it.",
    )


def kl_coef_at(kl_coef: float, schedule: KlScheduleConfig | None, iteration: int) -> float:
    """Returns the KL coefficient of an iteration: c (1 + cos(pi t / T)) / 2 + `constant`, where the wave is 0 after T.

    Args:
        kl_coef: The coefficient c of the first iteration, without the constant.
        schedule: The schedule with its T; None keeps c.
        iteration: Number of the iteration, from 1; t is the number of iterations before it.
    """
    if schedule is None:
        return kl_coef
    elapsed = min(1.0, (iteration - 1) / schedule.iterations)
    return kl_coef * 0.5 * (1.0 + math.cos(math.pi * elapsed)) + schedule.constant
