"""Lines about settings that are valid, and whose effect on a long run is easily overlooked."""

from flows.config.limits import cut_below_training
from flows.config.recipe import Recipe
from stages.curriculum.order import Ascending
from stages.environments.config import SourceConfig
from stages.training.schedules.learning_rates import learning_rate_at

_EVALUATIONS = ("evaluate", "final")


def advice(recipe: Recipe, last: int) -> list[str]:
    """Returns lines about a run to show when it starts: what its schedules and splits come to, and warnings.

    Args:
        recipe: Its recipe.
        last: Its last iteration, which may lie beyond that of the recipe.
    """
    lines = _questions(recipe, last)
    for name in _EVALUATIONS:
        lines += cut_below_training(getattr(recipe, name).sampled, recipe.longest_sampling, f"{name}.sampled")
    if last:
        lines += [*_rates(recipe, last), *_temperatures(recipe), *_rewards(recipe), *_phases(recipe, last)]
        lines += _orders(recipe)
    return lines


def _questions(recipe: Recipe, last: int) -> list[str]:
    """Returns how many questions of a file or an object are used, and how often; generated puzzles have no limit."""
    puzzles = recipe.puzzles
    if not isinstance(puzzles.puzzle, SourceConfig):
        return []
    parts = [
        f"{recipe.evaluate.puzzles} of {puzzles.val} for validation",
        f"{recipe.final.puzzles} of {puzzles.test} for the test",
    ]
    if last:
        passes = last * recipe.sample.puzzles_per_iteration / max(1, puzzles.train)
        parts.insert(0, f"{puzzles.train} for training, {passes:.3g} passes")
    return [f"questions: {'; '.join(parts)}"]


def _rates(recipe: Recipe, last: int) -> list[str]:
    """Returns where a falling learning rate ends, and a warning if iterations follow after the end of the schedule."""
    config = recipe.finetune
    learning = last - config.frozen_iterations  # schedules begin when the weights begin to change
    if config.schedule == "constant" or learning < 1:
        return []
    rate, length = learning_rate_at(config, learning), config.schedule_iterations
    if learning > length:
        return [
            f"warning: the schedule of the learning rate has {length} iterations (finetune.schedule_iterations): those "
            f"after iteration {config.frozen_iterations + length} have {rate:.1e} instead of {config.learning_rate:.1e}"
        ]
    of = f"{learning} of {length} iterations of the {config.schedule} schedule"
    return [f"learning rate: from {config.learning_rate:.1e} to {rate:.1e} in iteration {last} ({of})"]


def _temperatures(recipe: Recipe) -> list[str]:
    """Returns warnings about evaluations at another temperature than training, unless the recipe sets it."""
    trained = recipe.longest_sampling.temperature
    measured = {name: getattr(recipe, name).sampled for name in _EVALUATIONS}
    return [
        f"warning: {name}.sampled.temperature is {sampled.temperature:g}, but completions are trained at {trained:g}"
        for name, sampled in measured.items()
        if sampled.temperature != trained and "temperature" not in sampled.model_fields_set
    ]


def _rewards(recipe: Recipe) -> list[str]:
    """Returns warnings about accuracy, if it decides something and the reward has no term for it."""
    lines: list[str] = []
    reward = recipe.grade.reward
    if not recipe.learns_from_rewards or reward.accuracy_weight or reward.exact_weight or reward.outcomes:
        return lines
    if reward.judge is not None or reward.function is not None:
        lines.append(
            "warning: checkpoints are promoted by accuracy, for which grade.reward has no term of its own; "
            "promote.tolerance_se = 1000 promotes the newest instead"
        )
    if recipe.sample.resample:
        lines.append(
            "warning: sample.resample keeps the groups that differ in accuracy, for which grade.reward has no term"
        )
    return lines


def _phases(recipe: Recipe, last: int) -> list[str]:
    """Returns a warning if the last phase cannot begin; phases that end by a rule may be short."""
    begins = sum(phase.iterations or 0 for phase in recipe.phases[:-1])
    if not recipe.phases or begins < last:
        return []
    name = recipe.phases[-1].name
    return [f"warning: phase {name!r} does not begin by iteration {last}: those before it take {begins}"]


def _orders(recipe: Recipe) -> list[str]:
    """Returns a warning if dynamic sampling takes the same puzzles in every pass."""
    if not any(part.sample.resample and isinstance(part.sample.order, Ascending) for part in recipe.parts):
        return []
    return [
        "warning: sample.resample samples the first puzzles of each stride and the others only if these do not "
        "suffice; with order.by = 'ascending' they are the same in every pass"
    ]
