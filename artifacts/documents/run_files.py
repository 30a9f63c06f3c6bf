"""Reads the frozen recipe and other JSON files of a run that are not manifests."""

import json
from typing import Any

from artifacts.errors import IntegrityError
from artifacts.layout import RunLayout
from artifacts.store.keys import shown
from artifacts.store.store import Store

_REMEDY = "restore it from a copy; `deerstalker verify` lists all damaged files"


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Args:
        data: Content of the file.
        where: Address of the file, for error messages.

    Raises:
        IntegrityError: The file is empty, cut short, or does not hold a JSON object.
    """
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which cannot be stored
    except (ValueError, RecursionError) as error:
        reason = f"not JSON ({shown(str(error))})" if data.strip() else "empty"
        raise IntegrityError(where, reason, "a JSON object", _REMEDY) from error
    if not isinstance(value, dict):
        raise IntegrityError(where, f"a JSON {type(value).__name__}", "a JSON object", _REMEDY)
    return value


def read_recipe(store: Store, layout: RunLayout) -> dict[str, Any]:
    """Returns a run's frozen recipe in its stored form.

    Raises:
        MissingKeyError: The run has no frozen recipe.
        IntegrityError: The file is empty, cut short, or does not hold a recipe.
    """
    where = f"{store.url}/{layout.recipe}"
    recipe = json_object(store.read_bytes(layout.recipe), where)
    title, iterations = recipe.get("title"), recipe.get("iterations")
    if not isinstance(title, str) or not isinstance(iterations, int) or isinstance(iterations, bool):
        raise IntegrityError(where, "other JSON", "a recipe with title and iterations", _REMEDY)
    if not isinstance(recipe.get("promote"), dict):
        raise IntegrityError(where, "a recipe without promote", "a whole recipe", _REMEDY)
    return recipe
