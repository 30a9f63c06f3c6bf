"""Reading the JSON files of a store that are no manifests: frozen recipes, and what stands promoted."""

import json
from typing import Any

from artifacts.errors import IntegrityError
from artifacts.layout import RunLayout
from artifacts.seal import check_seal
from artifacts.store import MissingKeyError, Store
from artifacts.store_keys import shown

_REMEDY = "restore it from a copy; `deerstalker verify` names what else is damaged"


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        IntegrityError: The file is empty, cut short, or holds something else.
    """
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be written down again
    except (ValueError, RecursionError) as error:
        reason = f"not JSON ({shown(str(error))})" if data.strip() else "empty"
        raise IntegrityError(where, reason, "a JSON object", _REMEDY) from error
    if not isinstance(value, dict):
        raise IntegrityError(where, f"a JSON {type(value).__name__}", "a JSON object", _REMEDY)
    return value


def read_recipe(store: Store, layout: RunLayout) -> dict[str, Any]:
    """A run's frozen recipe, as it stands in the store.

    Raises:
        MissingKeyError: The run has none.
        IntegrityError: It is empty, cut short or none.
    """
    where = f"{store.url}/{layout.recipe}"
    recipe = json_object(store.read_bytes(layout.recipe), where)
    title, iterations = recipe.get("title"), recipe.get("iterations")
    if not isinstance(title, str) or not isinstance(iterations, int) or isinstance(iterations, bool):
        raise IntegrityError(where, "JSON of something else", "a recipe with title and iterations", _REMEDY)
    return recipe


def read_promoted(store: Store, layout: RunLayout) -> dict[str, Any] | None:
    """What stands promoted in a run: checkpoint and decision, iteration and score; None before the first decision.

    Raises:
        IntegrityError: It is empty, cut short, altered, or something else.
    """
    return promoted_at(store, layout.promoted)


def promoted_at(store: Store, key: str) -> dict[str, Any] | None:
    """The same, by the key of the run's `promoted.json`."""
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
        raise IntegrityError(where, "JSON of something else", "what stands promoted", "run again: it is written anew")
    return promoted
