"""Loads recipes (what a run learns) and profiles (the machine) from TOML files."""

from collections.abc import Sequence
from pathlib import Path

from flows.config.recipe import Recipe
from flows.config.settings import load_settings, overridden, settings_names, validate
from stages.context import Profile
from stages.environments.config import SourceConfig
from stages.prepare import PrepareConfig

__all__ = ["load_profile", "load_recipe", "located_beside", "overridden", "recipe_names", "validate"]


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
    return recipe.model_copy(update={"puzzles": located_beside(name, recipe.puzzles)})


def located_beside(name: str, puzzles: PrepareConfig) -> PrepareConfig:
    """Returns the settings of a puzzle set with the facts of its source, whose file stands beside a settings file.

    Args:
        name: Name or path of the settings file; the files of a name are in the working folder.
        puzzles: The settings in it.

    Raises:
        BadInputError: There is no such file or package.
    """
    if not isinstance(puzzles.puzzle, SourceConfig):
        return puzzles
    folder = Path(name).parent if name.endswith(".toml") else Path()
    return puzzles.model_copy(update={"puzzle": puzzles.puzzle.located(folder)})


def load_profile(name: str, overrides: Sequence[str] = ()) -> Profile:
    """Loads a profile by name or by path of a TOML file; raises as `load_recipe` does."""
    return load_settings(Profile, "profiles", name, overrides)
