"""Loads recipes (what a run learns) and profiles (the machine) from TOML files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from flows.config.recipe import PhaseConfig, Recipe
from flows.config.settings import load_settings, overridden, settings_names, validate
from stages.context import Profile
from stages.environments.config import SourceConfig
from stages.prepare import PrepareConfig

__all__ = ["load_profile", "load_recipe", "located_beside", "overridden", "recipe_names", "validate"]

P = TypeVar("P", Recipe, PhaseConfig)


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
    recipe, folder = load_settings(Recipe, "recipes", name, overrides), _folder(name)
    phases = [with_functions(phase, folder) for phase in recipe.phases]
    update = {"puzzles": located_beside(name, recipe.puzzles), "phases": phases}
    return with_functions(recipe, folder).model_copy(update=update)


def with_functions(part: P, folder: Path) -> P:
    """Returns a recipe or a phase whose own loss and reward, if it has them, are located in the recipe's folder."""
    loss, reward, update = part.finetune.loss, part.grade.reward, dict[str, Any]()
    if loss.function is not None:
        loss = loss.model_copy(update={"function": loss.function.located(folder)})
        update["finetune"] = part.finetune.model_copy(update={"loss": loss})
    if reward.function is not None:
        reward = reward.model_copy(update={"function": reward.function.located(folder)})
        update["grade"] = part.grade.model_copy(update={"reward": reward})
    return part.model_copy(update=update)


def located_beside(name: str, puzzles: PrepareConfig) -> PrepareConfig:
    """Returns the settings of a puzzle set with the facts of its source, whose file is beside a settings file.

    Args:
        name: Name or path of the settings file; for a name, files are in the working folder.
        puzzles: The settings in it.

    Raises:
        BadInputError: There is no such file or package.
    """
    if not isinstance(puzzles.puzzle, SourceConfig):
        return puzzles
    return puzzles.model_copy(update={"puzzle": puzzles.puzzle.located(_folder(name))})


def _folder(name: str) -> Path:
    """Returns the folder of a settings file; the working folder for a name."""
    return Path(name).parent if name.endswith(".toml") else Path()


def load_profile(name: str, overrides: Sequence[str] = ()) -> Profile:
    """Loads a profile by name or by path of a TOML file; raises as `load_recipe` does."""
    return load_settings(Profile, "profiles", name, overrides)
