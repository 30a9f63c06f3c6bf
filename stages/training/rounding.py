"""Warns of updates that rounding to bf16 mostly undoes: measured after a job, estimated where steps are rounded."""

import math

SPREAD = 0.02
"""Assumed standard deviation of weights (`initializer_range` of Qwen2.5 and Llama), since measuring it would mean
reading every weight."""
_LEAST_PUBLISHED = 0.5
"""Share of the movement below which a warning is due."""


def moved_share(max_change: float) -> float:
    """Returns the share of normally distributed weights (mean 0, deviation `SPREAD`) that an update changes in bf16.

    bf16 has 8 bits of significand, so its numbers from 2^e to 2^(e+1) are 2^(e-7) apart. A weight in that range is
    rounded back to its old value if it moves by less than half of that distance, 2^(e-8). An update of u therefore
    changes only weights below 2^(floor(log2 u) + 9). The true share is somewhat lower, since not every weight moves by
    the full u.

    Args:
        max_change: Largest change of a weight by the update, before rounding.
    """
    limit = 2.0 ** (math.floor(math.log2(max_change)) + 9)
    return math.erf(limit / (SPREAD * math.sqrt(2.0)))


def step_warning(learning_rate: float) -> str | None:
    """Returns a warning if rounding masters in bf16 after each step undoes most of it, else None.

    A step of AdamW moves a weight by about the learning rate at most. The warning is returned if it changes less than
    half of the weights (see `moved_share`).

    Args:
        learning_rate: Highest learning rate of a step.
    """
    share = moved_share(learning_rate)
    if share >= _LEAST_PUBLISHED:
        return None
    return (
        f"finetune.learning_rate {learning_rate:.1e}: weights are rounded to bf16 after each optimizer step, where "
        f"steps of this size move at most about {share:.0%} of them (of a typical size of {SPREAD:g}); unless this is "
        "intended, set optimizer.master_dtype = 'fp32' or raise the rate"
    )


def lost_warning(lost: float, setting: str, learning_rate: float, *, kept: bool, lora: bool) -> str | None:
    """Returns a warning if most of a job's movement was not published, else None.

    Args:
        lost: Share of the movement that rounding to bf16 lost (see `stages.training.model.movement`).
        setting: Name of the learning rate in the recipe.
        learning_rate: Highest learning rate of a step.
        kept: Whether the next job continues from the weights before rounding.
        lora: Whether adapters were trained.
    """
    if 1.0 - lost >= _LEAST_PUBLISHED:
        return None
    later = "it is published once later iterations have added enough to it" if kept else "it is lost for good"
    state = " or finetune.carry_state = true" if setting.startswith("finetune.") and not kept else ""
    ten = " (LoRA needs about ten times the rate of full weights)" if lora else ""
    return (
        f"{setting} {learning_rate:.1e}: the weights are rounded to bf16 when they are published, which lost "
        f"{lost:.0%} of their movement, so that sampling and evaluation see little of it; {later}. Unless this is "
        f"intended, set a higher rate{ten}{state}"
    )
