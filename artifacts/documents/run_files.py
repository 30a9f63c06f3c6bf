"""Reading of a run's JSON files that are not manifests: the frozen recipe and the pointer to the best checkpoint."""

import json
from typing import Any

from artifacts.documents.self_checksum import check_seal
from artifacts.errors import IntegrityError
from artifacts.layout import RunLayout
from artifacts.store.keys import shown
from artifacts.store.store import MissingKeyError, Store

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
    """Returns a run's frozen recipe, as it was stored.

    Raises:
        MissingKeyError: The run has no frozen recipe.
        IntegrityError: The file is empty, cut short, or does not hold a recipe.
    """
    where = f"{store.url}/{layout.recipe}"
    recipe = json_object(store.read_bytes(layout.recipe), where)
    title, iterations = recipe.get("title"), recipe.get("iterations")
    if not isinstance(title, str) or not isinstance(iterations, int) or isinstance(iterations, bool):
        raise IntegrityError(where, "other JSON", "a recipe with title and iterations", _REMEDY)
    return recipe


def read_promoted(store: Store, layout: RunLayout) -> dict[str, Any] | None:
    """Returns the pointer to a run's best checkpoint: checkpoint, decision, iteration and score.

    Returns:
        The content of the run's `promoted.json`; None before the first decision.

    Raises:
        IntegrityError: The file is empty, cut short, altered, or does not hold such a pointer.
    """
    return promoted_at(store, layout.promoted)


def promoted_at(store: Store, key: str) -> dict[str, Any] | None:
    """Returns what `read_promoted` returns, for the key of a `promoted.json`."""
    where = f"{store.url}/{key}"
    try:
        data = store.read_bytes(key)
    except MissingKeyError:
        return None
    promoted = json_object(data, where)
    check_seal(data, where)
    refs = [promoted.get(name) for name in ("checkpoint", "decision")]
    numbers = [promoted.get(name) for name in ("iteration", "decided_at_iteration", "score")]
    if not all(isinstance(ref, dict) and set(ref) == {"kind", "key", "digest"} for ref in refs) or not all(
        isinstance(number, int | float) for number in numbers
    ):
        expected = "the pointer to a run's best checkpoint"
        raise IntegrityError(where, "other JSON", expected, "run again: the next decision writes the file again")
    return promoted
