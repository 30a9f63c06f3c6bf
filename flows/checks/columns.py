"""Refuses orders and filters of puzzles that the puzzles of a run do not allow."""

import polars as pl

from artifacts.errors import NEW_RUN
from flows.config.recipe import Recipe
from stages.curriculum.pass_rates import column_values, rated_name
from stages.sample import WIDER, SampleConfig, eligible_puzzles


def _selections(recipe: Recipe) -> list[tuple[str, SampleConfig]]:
    """Returns the configs by which a run chooses train puzzles, with the names of their sections."""
    selections = [("sample", part.sample) for part in recipe.parts]
    if recipe.distil is not None and recipe.distil.samples:
        selections.append(("distil.sample", recipe.distil.sample))
    return selections


def reads_columns(recipe: Recipe) -> bool:
    """Returns whether the recipe chooses puzzles by columns of their table or by pass rates."""
    return any(sample.columns for _, sample in _selections(recipe))


def check_columns(recipe: Recipe, train: pl.DataFrame) -> None:
    """Checks columns and filters that need no pass rates; called before a model is fetched.

    Args:
        train: The train puzzles, rows of the `puzzles` schema.

    Raises:
        BadInputError: The puzzles lack a column, or a filter leaves too few of them.
    """
    for section, sample in _selections(recipe):
        for column in sample.columns:
            if rated_name(column) is None:
                column_values(train, None, column)
        if sample.where and not sample.rated_names:
            eligible_puzzles(train, None, sample, section=section, remedy=f"set {WIDER}")


def check_filters(recipe: Recipe, train: pl.DataFrame, pass_rates: pl.DataFrame | None) -> None:
    """Checks before iteration 1 that each filter by pass rates leaves enough puzzles under the first rates.

    Args:
        train: The train puzzles, rows of the `puzzles` schema.
        pass_rates: The first pass rates; None if the recipe measures none.

    Raises:
        BadInputError: A filter leaves too few puzzles.
    """
    for part in recipe.parts:
        if part.sample.rated_names:
            eligible_puzzles(train, pass_rates, part.sample, remedy=f"{NEW_RUN}, with {WIDER}")
