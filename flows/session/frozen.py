"""Freezes the recipe of a run, and checks that a run continues with the recipe that it began with."""

import re
from typing import Any

from artifacts.documents.checksums import sums_of
from artifacts.documents.run_files import read_recipe, recipe_bytes
from artifacts.errors import IdentityMismatchError
from artifacts.identity import differences
from artifacts.layout import RunLayout
from artifacts.store.store import MissingKeyError, Store
from flows.config.recipe import Recipe
from stages.answering.settings import Access
from stages.environments.config import SourceConfig

_CODE_SETTINGS = re.compile(
    r"(puzzles\.puzzle\.(sha256|version)|(phases\.\d+\.)?(finetune\.loss|grade\.reward)\.function\.sha256):"
)
"""Settings that differ between versions of a user's code, as `differences` writes them."""


def freeze_recipe(store: Store, layout: RunLayout, recipe: Recipe) -> None:
    """Stores the resolved recipe under the run's name; a stored recipe is never changed.

    It is called just before the first artifact of the run is stored. So an attempt that fails earlier leaves the name
    free. If two attempts start with different recipes, the one that stores first keeps the name.

    Raises:
        IdentityMismatchError: The name is taken by a run of another recipe.
    """
    text = recipe_bytes(recipe.model_dump(mode="json"))
    if not store.create_bytes(layout.recipe, text):
        check_recipe(store, layout, recipe)
        text = store.read_bytes(layout.recipe)  # a killed attempt may have left it without its checksum
    store.create_bytes(layout.sums, sums_of({layout.recipe.removeprefix(f"{layout.root}/"): text}))


def frozen_recipe(store: Store, layout: RunLayout) -> dict[str, Any] | None:
    """Returns the frozen recipe of a run as JSON; None if the run has not begun.

    Raises:
        IntegrityError: The file under the run's name is not a recipe.
    """
    try:
        return read_recipe(store, layout)
    except MissingKeyError:
        return None


def check_recipe(store: Store, layout: RunLayout, recipe: Recipe) -> None:
    """Checks that no other recipe is frozen under the run's name; `pack.row_tokens = "auto"` is any number.

    Raises:
        IdentityMismatchError: The name is taken by a run of another recipe.
    """
    frozen = frozen_recipe(store, layout)
    if frozen is None:
        return
    recipe = recipe.with_rows_of(frozen)
    stored, current = frozen, recipe.model_dump(mode="json")
    if isinstance(recipe.puzzles.puzzle, SourceConfig):
        for name in recipe.puzzles.puzzle.LOCATIONS:
            stored["puzzles"]["puzzle"].pop(name, None)
            current["puzzles"]["puzzle"].pop(name, None)
    for whole in (stored, current):
        whole["phases"] = {str(number): phase for number, phase in enumerate(whole.get("phases", ()))}
        for part in (whole, *whole["phases"].values()):  # a file may have been moved
            for function in (part["finetune"]["loss"]["function"], part["grade"]["reward"]["function"]):
                if function is not None:
                    function.pop("folder")
            if (judge := part["grade"]["reward"]["judge"]) is not None:
                for name in (*Access.model_fields, "price", "max_cost"):
                    judge.pop(name, None)
    if changes := differences(stored, current):
        if any(map(_CODE_SETTINGS.match, changes)):
            raise IdentityMismatchError(
                f"run {layout.run!r}",
                f"the code that it uses has changed: {'; '.join(changes[:6])}",
                "the code that the run began with",
                "restore it, or choose another --run name",
            )
        raise IdentityMismatchError(
            f"run {layout.run!r}",
            "started with another recipe: " + "; ".join(changes[:6]),
            "the recipe that it started with",
            "choose another --run name, or drop the changed settings",
        )
