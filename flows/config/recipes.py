"""Loads recipes (what a run learns) and profiles (the machine) from TOML files."""

from collections.abc import Sequence

from flows.config.recipe import Recipe
from flows.config.settings import load_settings, overridden, settings_names, validate
from stages.context import Profile

__all__ = ["load_profile", "load_recipe", "overridden", "recipe_names", "validate"]


def recipe_names() -> list[str]:
    """Returns the names of the recipes in the package."""
    return settings_names("recipes")


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Loads a recipe by name or by path of a TOML file.

    Args:
        overrides: `section.key=value` each; the value is TOML, or a bare string.

    Raises:
        BadInputError: No such recipe, broken TOML, an unknown key, a value out of range, or a contradiction.
    """
    return load_settings(Recipe, "recipes", name, overrides)


def load_profile(name: str, overrides: Sequence[str] = ()) -> Profile:
    """Loads a profile by name or by path of a TOML file; raises as `load_recipe` does."""
    return load_settings(Profile, "profiles", name, overrides)
