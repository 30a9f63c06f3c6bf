"""Refuses recipes that cannot be compared on the rollouts of a run."""

from artifacts.errors import BadInputError
from flows.config.recipe import Recipe
from stages.grpo.packing import PackConfig


def refuse_uncomparable(run: str, own: Recipe) -> None:
    """Refuses a run on whose rollouts other recipes cannot be trained.

    Args:
        run: Its name.
        own: Its recipe.

    Raises:
        BadInputError: A teacher judges its tokens, or it trains other weights than those that sampled.
    """
    if own.teach is not None:
        raise BadInputError(
            f"run {run!r}", "on-policy distillation", "a run that learns from rewards", "compare other runs"
        )
    if own.iterate_ahead:
        raise BadInputError(
            f"run {run!r}", "rollouts of older weights than those that were trained (iterate_ahead = 1)",
            "rollouts of the weights that candidates train", "compare on a run with iterate_ahead = 0",
        )  # fmt: skip


def refuse_other_signals(name: str, recipe: Recipe, own: Recipe) -> None:
    """Refuses a comparison of recipes whose advantages come from more than rewards.

    Raises:
        BadInputError: The candidate or the run has a critic, or a teacher judges the candidate's tokens.
    """
    if recipe.teach is not None:
        raise BadInputError(
            name,
            "on-policy distillation",
            "a recipe that learns from rewards",
            "train it as a run, and `diff` the runs",
        )
    if recipe.value is not None or own.value is not None:
        raise BadInputError(name, "a critic", "recipes without one", "train them as runs, and `diff` the runs")


def check_compared_rows(name: str, pack: PackConfig, longest: int) -> None:
    """Checks that the rows of a candidate have room for the longest completion of the rollouts with its prompt.

    Args:
        name: Name of the candidate.
        pack: Its section `pack`.
        longest: Tokens of that completion with its prompt.

    Raises:
        BadInputError: The rows are too short, and `pack.overlong` is `refuse`.
    """
    if pack.overlong == "refuse" and pack.row_size < longest:
        raise BadInputError(
            name,
            f"pack.row_tokens is {pack.row_size}, but a completion with its prompt has {longest} tokens",
            f"at least {longest}",
            f"--set pack.row_tokens={longest}",
        )


def check_buffer(name: str, recipe: Recipe, own: Recipe) -> None:
    """Checks that the candidate's overlong buffer is shorter than the longest completion.

    With a longer buffer, every token of a completion costs reward.

    Raises:
        BadInputError: The buffer is too long, and the candidate's reward is not the run's own.
    """
    buffer, longest = recipe.grade.reward.overlong_buffer_tokens, own.sample.sampling.max_tokens
    if buffer is not None and buffer >= longest and recipe.grade.reward != own.grade.reward:
        raise BadInputError(
            name,
            f"grade.reward.overlong_buffer_tokens is {buffer}, but the run's completions have at most {longest} tokens",
            "a buffer shorter than the longest completion",
            f"for instance --set grade.reward.overlong_buffer_tokens={max(1, longest // 5)}",
        )
