"""The settings in which two recipes differ."""

from artifacts.identity import Difference, different_settings
from flows.config.recipe import Recipe


def differences(a: Recipe, b: Recipe) -> list[Difference]:
    """Returns the settings in which two recipes differ, in the order of the sections; the title is left out."""
    ours, theirs = (recipe.model_dump(mode="json", exclude={"title"}) for recipe in (a, b))
    return different_settings(ours, theirs)
