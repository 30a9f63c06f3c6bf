"""Every recipe as a run freezes it, defaults filled in, so that a changed default shows in review.

A default was changed on purpose? `python -m tests.unit.config.golden` writes the files anew.
"""

import json
from pathlib import Path

from flows.config.recipes import load_recipe, recipe_names

FOLDER = Path(__file__).parent


def golden_file(name: str) -> Path:
    """Where the resolved form of a recipe is kept."""
    return FOLDER / f"{name}.json"


def resolved_text(name: str) -> str:
    """The resolved form of a recipe, as its golden file has it."""
    return json.dumps(load_recipe(name).model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def rewrite() -> None:
    """Makes the golden files say what the recipes say now."""
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    for name in recipe_names():
        golden_file(name).write_text(resolved_text(name))
