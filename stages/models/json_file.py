"""Reads JSON files that other programs wrote, and writes files that they read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast, get_args

from artifacts.errors import BadInputError
from artifacts.local.input_files import read_input

LayerType = Literal["full_attention", "sliding_attention"]
_MAX_SIZE = 2**31 - 1
_MAX_NUMBER = 1e30


def strict_json(text: str | bytes) -> object:
    """Parses standard JSON in UTF-8.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, repeats a key, or contains `NaN` or `Infinity`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError(f"a key is repeated among {len(pairs)}")
    return table


def shown(value: object) -> str:
    """Returns at most 80 characters about a value for a message; strings are quoted, control characters escaped."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        BadInputError: The file is missing, unreadable, not JSON or not an object.
    """
    data = read_input(path, "a file of a Hugging Face model folder", "copy the model again")
    try:
        parsed = strict_json(data)
    except ValueError as error:
        raise BadInputError(str(path), f"not JSON ({error})", "a JSON object", "copy the file again") from error
    if not isinstance(parsed, dict):
        raise BadInputError(str(path), "not a JSON object", "a JSON object", "copy the file again")
    return cast("dict[str, Any]", parsed)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object in the style of transformers."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def refuse_own_code(path: Path, settings: dict[str, Any]) -> None:
    """Refuses a model folder whose settings, or tables inside them, name code, because such code is never run.

    Args:
        path: Path of the settings file.
        settings: Content of `config.json` or `tokenizer_config.json`.

    Raises:
        BadInputError: `auto_map` names Python code of a model, or a setting such as `attn_implementation` a kernel of
            the hub, which transformers downloads and runs where the package `kernels` is installed.
    """
    for name, value in settings.items():
        kernel = "_implementation" in name and "/" in str(value)
        if kernel or (name == "auto_map" and value):
            kind = "a kernel of the hub" if kernel else "Python code of the model's own"
            raise BadInputError(
                f"{path}: {name}",
                f"{kind}, {shown(value)}",
                "a model whose code is part of transformers and vLLM",
                f"code from a model folder is never run; remove {name} if the model does not need it",
            )
        if isinstance(value, dict):
            refuse_own_code(path, cast("dict[str, Any]", value))


class ConfigFile:
    """A config.json whose values are checked when they are read.

    Args:
        path: Path of the file.
        values: Content of the file, or of a table in it.
        defaults: Values of keys that are missing.

    Attributes:
        written: Content of the file, without defaults.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], defaults: Mapping[str, object] | None = None) -> None:
        self.path, self.written = path, values
        self._values = {**(defaults or {}), **values}

    def stated(self, name: str) -> object:
        """Returns a value without checks, or None if there is none."""
        return self._values.get(name)

    def table(self, name: str) -> dict[str, Any]:
        """Returns a table, empty if there is none."""
        value = self.stated(name)
        if value is not None and not isinstance(value, dict):
            raise self.refusal(name, value, "a table")
        return cast("dict[str, Any]", value or {})

    def count(self, name: str, default: int | None = None, *, most: int = _MAX_SIZE) -> int:
        """Returns a whole number from 1 to `most`."""
        value = self._stated_or(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.refusal(name, value, f"a whole number from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number above 0."""
        value = self._stated_or(name, default)
        if not _is_number(value):
            raise self.refusal(name, value, "a finite number above 0")
        return float(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Returns a list of `length` finite numbers above 0 as a tuple."""
        value = self.stated(name)
        if not isinstance(value, list) or len(value) != length or not all(map(_is_number, cast("list[Any]", value))):
            raise self.refusal(name, value, f"{length} finite numbers above 0")
        return tuple(map(float, cast("list[Any]", value)))

    def switch(self, name: str) -> bool:
        """Returns true or false; false if there is no value."""
        value = self.stated(name)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(name, value, "true or false")
        return bool(value)

    def sliding_layers(self, layers: int, every: int) -> list[int]:
        """Returns the numbers of the sliding layers in `layer_types`; without it, all but each `every`-th layer."""
        types = self.stated("layer_types")
        if types is None:
            return [layer for layer in range(layers) if (layer + 1) % every]
        if not isinstance(types, list) or len(types) != layers or not set(map(str, types)) <= set(get_args(LayerType)):
            raise self.refusal("layer_types", types, f"{layers} times {' or '.join(get_args(LayerType))}")
        return [layer for layer, kind in enumerate(cast("list[str]", types)) if kind == "sliding_attention"]

    def refuse(self, **expected: object) -> None:
        """Refuses values of keys that change the computation; a key without a value passes."""
        for name, value in expected.items():
            if (stated := self.stated(name)) not in (None, value):
                raise self.refusal(name, stated, f"{value!r}" if isinstance(value, str) else _json_word(value))

    def refusal(self, name: str, value: object, expected: str, remedy: str = "") -> BadInputError:
        """Returns the error that refuses a value."""
        stated = "no value" if value is None else shown(value)
        return BadInputError(f"{self.path}: {name}", stated, expected, remedy)

    def _stated_or(self, name: str, default: object) -> object:
        value = self.stated(name)
        return default if value is None else value


def _json_word(value: object) -> str:
    """Returns a switch or null as JSON spells it."""
    return "null" if value is None else str(value).lower()


def _is_number(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= _MAX_NUMBER
