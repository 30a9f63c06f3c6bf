"""Applies a published recipe's algorithm at another run's scale.

These settings come from the published recipe:

* how rewards become advantages (`grade.advantage`);
* loss, clip range, aggregation, old log-probabilities, KL and entropy terms, corrections (`finetune.loss`). A
  `constant` aggregation divides by the length of the base recipe's longest completion. The loss has the sampling
  temperature of the base recipe, unless the published loss has one of its own (`temperature_of`);
* the reference of the KL term (`finetune.reference`, `reference_iterations`, `reference_decay`) and the schedule of its
  coefficient (`finetune.kl_schedule`);
* the treatment of groups without a signal (`pack.uniform_groups`), without dynamic sampling: a comparison samples
  nothing;
* the completions to train on (`pack.completions`), and the marks of right ones (`pack.mark_right`), which a loss may
  need.

All other settings come from the base recipe, because they belong to its model and its task: rewards and grader,
learning rate, optimizer and passes, row size, number of updates, trained parameters, and all sizes.
"""

from typing import Any

from flows.config.recipe import Recipe

TAKEN = (
    "grade.advantage", "finetune.loss", "finetune.reference", "finetune.reference_iterations",
    "finetune.reference_decay", "finetune.kl_schedule", "pack.uniform_groups", "pack.completions", "pack.mark_right",
)  # fmt: skip
"""Settings that come from the published recipe."""


def algorithm(base: Recipe, published: Recipe) -> dict[str, Any]:
    """Returns the settings of a published recipe's algorithm, adapted to the base recipe (see the module).

    Returns:
        Plain values by the setting's name, in the order of `TAKEN`.
    """
    values, settings = published.model_dump(mode="json"), dict[str, Any]()
    for name in TAKEN:
        section, key = name.split(".")
        settings[name] = values[section][key]
    loss = settings["finetune.loss"]
    if loss["temperature_of"] == "sampler":
        loss["temperature"] = base.sample.sampling.temperature
    if loss["constant_tokens"] is not None:
        loss["constant_tokens"] = base.sample.sampling.max_tokens
    return settings
