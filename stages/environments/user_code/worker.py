"""Calls the object of a user, in a process of its own (see `stages.processes.limited_calls`)."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stages.environments.user_code.config import entry_point, version_of
from stages.processes.user_file import check_call, load_from

LARGEST_ITEM = 1_000_000
"""Bytes of the JSON of an item."""
METHODS = {"items": ("count", "seed"), "grade": ("completion", "item")}
"""Methods of an object, with the arguments that they get by name, so that their order does not matter."""


def load(location: str, name: str, version: str) -> Callable[..., Any]:
    """Returns a function that calls a method of the object.

    Args:
        location: The Python file; `package` for an entry point.
        name: Name of the object in the file, or of the entry point.
        version: Digest of the file, or version of the package.

    Raises:
        Exception: The object cannot be imported, is of another version, or lacks a method with the right arguments.
    """
    target = _from_package(name, version) if location == "package" else load_from(Path(location), name, version)
    target = target() if inspect.isclass(target) else target
    for method, names in METHODS.items():
        _check_method(target, name, method, names)

    def call(method: str, *arguments: Any) -> Any:
        return {"items": _items, "grade": _grade, "levels": _levels}[method](target, *arguments)

    return call


def _check_method(target: Any, name: str, method: str, names: Sequence[str]) -> None:
    """Raises TypeError if an object has no method that can be called with arguments of these names."""
    function = getattr(target, method, None)
    expected = f"def {method}(self, {', '.join(names)})"
    if not callable(function):
        raise TypeError(f"{name} has no method {method}; write {expected}")
    try:
        check_call(function, expected, names, by_name=True)
    except TypeError as error:
        raise TypeError(f"{name}.{method}{error}") from error


def _from_package(name: str, version: str) -> Any:
    point = entry_point(name)
    if (now := version_of(point)) != version:
        raise ValueError(f"the package has changed: {now}, expected {version}")
    return point.load()


def _items(target: Any, count: int, seed: int, level: str | None) -> list[str]:
    """Returns the items as JSON.

    Raises:
        Exception: The method raises, or an item cannot be used.
    """
    settings = {} if level is None else {"level": level}
    _check_method(target, type(target).__name__, "items", (*METHODS["items"], *settings))
    items = [
        item for item, _ in zip(target.items(count=count, seed=seed, **settings), range(100 * count), strict=False)
    ]
    return [_checked(item, number) for number, item in enumerate(items)]


def _checked(item: Any, number: int) -> str:
    if not isinstance(item, dict):
        raise TypeError(f"item {number} is {_short(item)}, expected a dict")
    prompt = item.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise TypeError(f"item {number} has the prompt {_short(prompt)}, expected a text")
    try:
        written = json.dumps(item, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"item {number} is not JSON ({error})") from error
    stored = json.loads(written)
    for changed in (key for key, value in item.items() if key not in stored or stored[key] != value):
        now = _short(stored[changed]) if changed in stored else "a text as key"
        raise TypeError(
            f"item {number} changes when it is stored as JSON: {changed!r} is {_short(item[changed])} and then {now}; "
            "use lists instead of tuples, and texts as keys"
        )
    if len(written) > LARGEST_ITEM:
        raise ValueError(f"item {number} has {len(written):,} bytes of JSON, expected at most {LARGEST_ITEM:,}")
    return written


def _grade(target: Any, completion: str, item: str) -> float | str:
    """Returns the score, or the text of a returned value that is no number from 0 to 1."""
    score = target.grade(completion=completion, item=json.loads(item))
    try:
        number = float(score) if not isinstance(score, str) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    return number if 0.0 <= number <= 1.0 else _short(score)


def _levels(target: Any) -> list[str]:
    return [str(name) for name in getattr(target, "levels", ())]


def _short(value: object) -> str:
    return repr(value)[:80]
