"""Reading JSON that somebody else wrote."""

import json
from pathlib import Path
from typing import Any, cast

from artifacts.errors import BadInputError


def strict_json(text: str | bytes) -> object:
    """Parses standard JSON in UTF-8.

    Raises:
        ValueError: It is no JSON, is nested too deeply, names a key twice, or holds `NaN` or `Infinity`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name}, which is no number")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError(f"a key twice among {len(pairs)}")
    return table


def shown(value: object) -> str:
    """Somebody else's value for a message: in quotes, without control characters, at most 80 characters."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        BadInputError: The file is missing or unreadable, not JSON, or not an object.
    """
    try:
        parsed = strict_json(path.read_bytes())
    except FileNotFoundError as error:
        raise BadInputError(str(path), "no such file", "a file of a Hugging Face model folder") from error
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise BadInputError(str(path), reason, "a file of a Hugging Face model folder", "check its rights") from error
    except ValueError as error:
        raise BadInputError(str(path), f"not JSON ({error})", "a JSON object", "copy the file again") from error
    if not isinstance(parsed, dict):
        raise BadInputError(str(path), "not a JSON object", "a JSON object", "copy the file again")
    return cast("dict[str, Any]", parsed)


def refuse_own_code(path: Path, settings: dict[str, Any]) -> None:
    """Refuses a model folder whose settings name Python code of its own: it is never run.

    Args:
        path: The file of the settings.
        settings: Content of `config.json` or `tokenizer_config.json`.

    Raises:
        BadInputError: `auto_map` names code.
    """
    if code := settings.get("auto_map"):
        raise BadInputError(
            f"{path}: auto_map",
            f"Python code of the model's own, {shown(code)}",
            "a model that transformers and vLLM have the code of",
            "code out of a model folder is never run; remove auto_map if the model needs none",
        )
