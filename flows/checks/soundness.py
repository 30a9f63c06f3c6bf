"""Checks of recipes for new runs: valid settings that together prevent the intended learning."""

from itertools import pairwise

from artifacts.errors import BadInputError
from flows.checks.learning import check_learns
from flows.config.recipe import PhaseConfig, Recipe
from stages.curriculum.order import Pools, Shuffled, columns_of
from stages.curriculum.pass_rates import RUN, SHARES, is_share, rated_name
from stages.finetune import FinetuneConfig
from stages.sample import SampleConfig
from stages.sampling.config import SamplingConfig
from stages.strategies.config import check_temperatures

_CHANGE_PROBABILITIES = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Settings of the sampler, besides temperature, that make a token's probability differ from the model's."""
_SCHEDULES = {
    "schedule": "constant", "schedule_iterations": None, "warmup_iterations": 0, "frozen_iterations": 0,
    "kl_schedule": None,
}  # fmt: skip
"""Settings of `finetune` that count iterations, and the value by which each counts none."""


def check_sound(recipe: Recipe) -> None:
    """Refuses an unsound recipe. Call it for new runs only: a run older than this check may continue.

    Raises:
        BadInputError: The recipe cannot learn (see `check_learns`); rows are too short; the loss uses the sampler's
            probabilities as the model's, but the sampler changes them; the standard deviation of the batch would
            include groups that `sample.resample` drops; pools are formed by numbers other than shares; a filter by
            the run's own rates changes during a pass; vLLM does not sample at a temperature;
            `distil.sample` reads pass rates, which are not known yet when it samples; or a phase trains parameters that
            the optimizer state or the adapter of the phase before lacks, or sets a schedule for itself.
    """
    if recipe.distil is not None:
        _check_known_columns(recipe.distil.sample)
        _check_pools("distil.sample", recipe.distil.sample)
    check_learns(recipe)
    check_temperatures(recipe, "")
    for part in recipe.parts:
        _check_sound_part(part)
    for number, (before, phase) in enumerate(pairwise(recipe.phases), 1):
        _check_continues(before, phase, f"phases.{number}.finetune.trainable")
        _check_schedule(recipe.finetune, phase.finetune, f"phases.{number}.finetune")


def _check_schedule(whole: FinetuneConfig, phase: FinetuneConfig, where: str) -> None:
    """Refuses a schedule that a later phase sets for itself: schedules count the iterations of the run."""
    for name, none in _SCHEDULES.items():
        value = getattr(phase, name)
        if value not in (getattr(whole, name), none):
            raise BadInputError(
                f"{where}.{name}",
                f"{value}, which the phase does not share with the recipe",
                "the recipe's, because schedules count from the run's first iteration",
                "set it in [finetune] for the whole run, or give the phase a constant rate of its own",
            )


def _check_continues(before: PhaseConfig, phase: PhaseConfig, where: str) -> None:
    """Refuses a phase that trains what the optimizer state or the adapter of the phase before does not hold."""
    earlier, trained = before.finetune.trainable, phase.finetune.trainable
    keeps = phase.optimizer == "kept" and before.finetune.carry_state
    if keeps and not trained.takes_state_of(earlier):
        raise BadInputError(
            where,
            f"parameters that the optimizer state of {before.name!r} lacks",
            f"those of {before.name!r}, or some of all or of its top layers",
            "set the phase's optimizer to 'fresh'",
        )
    if trained.publishes_adapter and earlier.publishes_adapter and trained.adapter and earlier.adapter:
        trained.adapter.check_continues(earlier.adapter)


def _check_known_columns(sample: SampleConfig) -> None:
    """Refuses an order or a filter of the texts' puzzles that needs pass rates."""
    for column in sample.columns:
        if rated_name(column) is not None:
            raise BadInputError(
                "distil.sample",
                f"its order or where reads {column!r}, but pass rates are measured after the texts are learned",
                "columns of the puzzles, such as num_clues or difficulty:SIZE",
                "choose another column, or leave it out",
            )


def _check_pools(section: str, sample: SampleConfig) -> None:
    """Refuses pools by numbers other than shares, because all puzzles would be in one pool."""
    if isinstance(sample.order, Pools) and not is_share(sample.order.column):
        raise BadInputError(
            f"{section}.order.column",
            f"{sample.order.column!r}, which is not a share from 0 to 1, so that pools cannot divide the puzzles",
            f"{', '.join(f'{kind}:NAME' for kind in SHARES)}",
            "choose one of them, or order the puzzles by 'ascending'",
        )


def _check_passes(sample: SampleConfig) -> None:
    """Refuses a filter that changes during a pass, because strides through what is left skip and repeat puzzles."""
    own = [column for column in columns_of(Shuffled(), sample.where) if rated_name(column) == RUN]
    if own and not isinstance(sample.order, Pools):
        raise BadInputError(
            "sample.where",
            f"{own[0]}, which changes while the run measures it, so that a pass would skip and repeat puzzles",
            "rates of a model of [rate], or sample.order.by = 'pools', which draws anew in each iteration",
            "set one of them",
        )


def _check_sound_part(recipe: Recipe) -> None:
    _check_pools("sample", recipe.sample)
    _check_passes(recipe.sample)
    row, longest = recipe.pack.row_tokens, recipe.sample.sampling.max_tokens
    if row != "auto" and row <= longest and recipe.pack.overlong == "refuse":
        raise BadInputError(
            "pack.row_tokens",
            f"{row}, too short for a prompt with a completion of sample.sampling.max_tokens ({longest})",
            "auto, or room for both",
            'set it, lower max_tokens, or leave what does not fit out with pack.overlong = "drop"',
        )
    check_rollouts_fit(recipe, drops_groups=recipe.sample.resample is not None)


def check_rollouts_fit(recipe: Recipe, *, drops_groups: bool) -> None:
    """Refuses an algorithm that misreads the recipe's rollouts.

    Args:
        drops_groups: Whether groups are left out whose completions are equally right.

    Raises:
        BadInputError: The loss uses the sampler's probabilities as the model's, but the sampler changes them; or the
            mean or the standard deviation of the batch would include groups that are dropped.
    """
    plain, drawn = SamplingConfig(), recipe.sample.sampling
    changed = [name for name in _CHANGE_PROBABILITIES if getattr(drawn, name) != getattr(plain, name)]
    if changed and (recipe.finetune.loss.old_logprobs == "sampler" or recipe.teach):
        raise BadInputError(
            f"sample.sampling.{changed[0]}",
            f"{getattr(drawn, changed[0])}, so the sampler's probabilities are not the model's",
            str(getattr(plain, changed[0])),
            "a teacher compares with them" if recipe.teach else "or set finetune.loss.old_logprobs to trainer",
        )
    advantage, value = recipe.grade.advantage, recipe.value
    for name, stated, over_batch in (
        ("grade.advantage.scale", advantage.scale, "batch_std"),
        ("grade.advantage.baseline", advantage.baseline, "batch_mean"),
        ("value.normalise", value.normalise if value is not None else None, "batch"),
    ):
        if drops_groups and stated == over_batch:
            raise BadInputError(
                name,
                f"{stated}, which includes the groups that sample.resample drops",
                f"another {name.rpartition('.')[2]}, or no sample.resample",
            )
