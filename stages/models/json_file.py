"""Reads JSON files that other programs wrote."""

import json
from pathlib import Path
from typing import Any, cast

from artifacts.errors import BadInputError
from artifacts.local.input_files import read_input


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
