"""Loads recipes (what a run learns) and profiles (the machine) from TOML files."""

from collections.abc import Sequence
from pathlib import Path

from flows.config.recipe import Recipe
from flows.config.settings import load_settings, overridden, settings_names, validate
from stages.context import Profile
from stages.environments.config import SourceConfig

__all__ = ["load_profile", "load_recipe", "overridden", "recipe_names", "validate"]


def recipe_names() -> list[str]:
    """Returns the names of the recipes in the package."""
    return settings_names("recipes")


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Loads a recipe by name or by path of a TOML file.

    Args:
        overrides: `section.key=value` each; the value is TOML, or a bare string.

    Raises:
        BadInputError: No such recipe, broken TOML, an unknown key, a value out of range, or a contradiction; no such
            file beside the recipe.
    """
    recipe = load_settings(Recipe, "recipes", name, overrides)
    if not isinstance(recipe.puzzles.puzzle, SourceConfig):
        return recipe
    folder = Path(name).parent if name.endswith(".toml") else Path()
    puzzles = recipe.puzzles.model_copy(update={"puzzle": recipe.puzzles.puzzle.located(folder)})
    return recipe.model_copy(update={"puzzles": puzzles})


def load_profile(name: str, overrides: Sequence[str] = ()) -> Profile:
    """Loads a profile by name or by path of a TOML file; raises as `load_recipe` does."""
    return load_settings(Profile, "profiles", name, overrides)
