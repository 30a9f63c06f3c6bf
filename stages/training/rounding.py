"""Estimates the share of the weights that an update changes if the result is rounded to bf16."""

import math

SPREAD = 0.02
"""Assumed standard deviation of weights (`initializer_range` of Qwen2.5 and Llama), since measuring it would mean
reading every weight."""


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


def rounding_warning(learning_rate: float, steps: int, *, each_step: bool) -> str | None:
    """Returns a warning if rounding to bf16 between updates loses most of them, else None.

    A step of AdamW moves a weight by about the learning rate at most. Masters in float32 are rounded once, after all
    steps of the iteration; masters in bf16 are rounded after each step. The warning is returned if an update changes
    less than half of the weights (see `moved_share`).

    Args:
        learning_rate: Highest learning rate of a step.
        steps: Number of optimizer steps of an iteration.
        each_step: Whether the masters are kept in bf16.
    """
    share = moved_share(learning_rate * (1 if each_step else steps))
    if share >= 0.5:
        return None
    rounded = "after each optimizer step" if each_step else f"after the {steps} optimizer steps of each iteration"
    remedy = "optimizer.master_dtype = 'fp32'" if each_step else "finetune.carry_state = true"
    return (
        f"finetune.learning_rate {learning_rate:.1e}: weights are rounded to bf16 {rounded}, where steps of this size "
        f"move at most about {share:.0%} of them (of a typical size of {SPREAD:g}); unless this is meant, set {remedy} "
        "or raise the rate"
    )
