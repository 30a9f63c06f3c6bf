"""How many weights an update reaches that is rounded to bf16 afterwards."""

import math

SPREAD = 0.02
"""Assumed standard deviation of weights: `initializer_range` of Qwen2.5 and Llama. Measuring it would mean reading
every weight."""


def moved_share(reach: float) -> float:
    """The share of normally distributed weights (mean 0, deviation `SPREAD`) that bf16 moves by an update.

    bf16 has 8 bits of significand, so that its numbers from 2^e to 2^(e+1) lie 2^(e-7) apart. A weight that is such a
    number stays where it is as long as it moves by less than half of that, 2^(e-8). An update of u therefore moves the
    weights below 2^(floor(log2 u) + 9) only. The true share is somewhat lower, since not every weight moves that far.

    Args:
        reach: How far the update may move a weight before it is rounded.
    """
    limit = 2.0 ** (math.floor(math.log2(reach)) + 9)
    return math.erf(limit / (SPREAD * math.sqrt(2.0)))


def rounding_warning(learning_rate: float, steps: int, *, each_step: bool) -> str | None:
    """A warning for updates that mostly round away because the weights are kept in bf16 between them, else None.

    A step of AdamW moves a weight by about the learning rate at most. Masters in float32 are rounded once, after all
    steps of the iteration, masters in bf16 after each. The warning comes where this reaches less than half of the
    weights (see `moved_share`).

    Args:
        learning_rate: Of a step, at its highest.
        steps: Optimizer steps of an iteration.
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
