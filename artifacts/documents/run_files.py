"""Reads the frozen recipe and other JSON files of a run that are not manifests."""

import json
from collections.abc import Mapping
from typing import Any

from artifacts.documents.store_format import FORMAT_VERSION, VERSION_FIELD, check_format
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
        json.dumps(value, ensure_ascii=False).encode()  # fails for a lone surrogate, which cannot be stored
    except (ValueError, RecursionError) as error:
        reason = f"not JSON ({shown(str(error))})" if data.strip() else "empty"
        raise IntegrityError(where, reason, "a JSON object", _REMEDY) from error
    if not isinstance(value, dict):
        raise IntegrityError(where, f"a JSON {type(value).__name__}", "a JSON object", _REMEDY)
    return value


def recipe_bytes(recipe: Mapping[str, Any]) -> bytes:
    """Returns the file of a frozen recipe: readable JSON with the version of the store's format."""
    return (json.dumps({VERSION_FIELD: FORMAT_VERSION, **recipe}, indent=2, ensure_ascii=False) + "\n").encode()


def read_recipe(store: Store, layout: RunLayout) -> dict[str, Any]:
    """Returns a run's frozen recipe as JSON, without the version of the format.

    Raises:
        MissingKeyError: The run has no frozen recipe.
        IntegrityError: The file is empty, cut short, or does not hold a recipe.
        OtherFormatError: The recipe is of another version of the format.
    """
    where = f"{store.url}/{layout.recipe}"
    recipe = json_object(store.read_bytes(layout.recipe), where)
    title, iterations = recipe.get("title"), recipe.get("iterations")
    if not isinstance(title, str) or not isinstance(iterations, int) or isinstance(iterations, bool):
        raise IntegrityError(where, "other JSON", "a recipe with title and iterations", _REMEDY)
    if not isinstance(recipe.get("promote"), dict):
        raise IntegrityError(where, "a recipe without promote", "a whole recipe", _REMEDY)
    check_format(recipe, where)
    del recipe[VERSION_FIELD]
    return recipe
