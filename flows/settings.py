"""TOML files of settings in, config models out; importing this costs little."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from artifacts.errors import BadInputError

M = TypeVar("M", bound=BaseModel)


def settings_names(folder: str) -> list[str]:
    """Names of the TOML files of a folder of `deployments`."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files("deployments").joinpath(folder).iterdir()
        if entry.name.endswith(".toml")
    )


def load_settings(model: type[M], folder: str, name: str, overrides: Sequence[str]) -> M:
    """Loads a TOML file by its name in a folder of `deployments`, or by its path, as a config model.

    Args:
        folder: `recipes` or `profiles`.
        overrides: `section.key=value` each; the value is TOML, or a bare string.

    Raises:
        BadInputError: No such file, broken TOML, an unknown key, a value out of range, or a contradiction.
    """
    if name.endswith(".toml"):
        source = Path(name)
        if not source.is_file():
            raise BadInputError(name, "no such file", "a TOML file", f"or one of: {', '.join(settings_names(folder))}")
    else:
        source = files("deployments").joinpath(folder).joinpath(f"{name}.toml")
        if not source.is_file():
            raise BadInputError(
                f"{folder.removesuffix('s')} {name!r}",
                "unknown",
                ", ".join(settings_names(folder)),
                "or name a .toml file",
            )
    try:
        data = tomllib.loads(source.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(str(source), f"not TOML ({error})", "a TOML file") from error
    return validate(model, overridden(data, overrides), name)


def overridden(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Settings with changes, `section.key=value` each; the string "null" becomes None, for which TOML has no word.

    Raises:
        BadInputError: A change is no `key=value`, or treats a value as a section.
    """
    for override in overrides:
        _apply(data, override)
    return {key: _with_nulls(value) for key, value in data.items()}


def validate(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """Builds a config model; the error names each key at fault and what it takes."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            at = ".".join(str(part) for part in problem["loc"]) or "settings"
            given = json.dumps(problem["input"], default=str)
            problems.append(f"{at}: {problem['msg']}" + (f" (found {given})" if len(given) < 60 else ""))
        raise BadInputError(where, "; ".join(problems[:5]), remedy="correct the key or value") from error


def _apply(data: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        form = "section.key=value, for instance finetune.learning_rate=1e-5"
        raise BadInputError(f"--set {override}", "no key=value", form)
    *parents, leaf = path.strip().split(".")
    table = data
    for parent in parents:
        child = table.setdefault(parent, {})
        if not isinstance(child, dict):
            raise BadInputError(f"--set {override}", f"{parent} is a value", "a section")
        table = child
    table[leaf] = _value(text)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    return None if value == "null" else value
