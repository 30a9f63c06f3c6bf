"""Reads TOML files of settings into config models; imports only fast modules."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from artifacts.documents.parsing import check_plain, parse_toml
from artifacts.documents.suggestions import choices_of, did_you_mean, meant_key, setting_at
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_SETTINGS, read_input

M = TypeVar("M", bound=BaseModel)

_MOST_PROBLEMS = 5
_MOST_SHOWN = 60
"""Characters of a value that an error shows; longer values are omitted."""
_QUOTED = re.compile(r"'([^']+)'")


def settings_names(folder: str) -> list[str]:
    """Returns the names of the TOML files in a folder of `deployments`."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in files("deployments").joinpath(folder).iterdir()
        if entry.name.endswith(".toml")
    )


def load_settings(model: type[M], folder: str, name: str, overrides: Sequence[str]) -> M:
    """Loads a TOML file as a config model, by its name in a folder of `deployments` or by its path.

    Args:
        folder: `recipes`, `profiles`, `models` or `suites`.
        overrides: `section.key=value` each; the value is TOML, or a bare string.

    Raises:
        BadInputError: No such file, broken TOML, an unknown key, a value out of range, or a contradiction.
    """
    names = settings_names(folder)
    if name.endswith(".toml"):
        remedy = f"or one of: {', '.join(names)}"
        data = read_input(name, "a TOML file", remedy, most_bytes=LARGEST_SETTINGS)
    elif name in names:
        data = files("deployments").joinpath(folder).joinpath(f"{name}.toml").read_bytes()
    else:
        where = f"{folder.removesuffix('s')} {name!r}"
        raise BadInputError(where, f"unknown{did_you_mean(name, names)}", ", ".join(names), "or name a .toml file")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(name, f"not TOML (byte {error.start + 1} is not UTF-8)", "a TOML file") from error
    option = "--set-profile" if folder == "profiles" else "--set"
    return validate(model, overridden(parse_toml(text, name, "a TOML file"), overrides, option), name)


def overridden(data: dict[str, Any], overrides: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """Applies changes to settings, `section.key=value` each, and returns the settings with each "null" as None.

    TOML has no null, so the string "null" represents it. `data` is changed. Errors name the option of the command.

    Raises:
        BadInputError: A change is not `key=value`, uses a value as a section, or is nested too deeply.
    """
    for override in overrides:
        where = f"{option} {override if len(override) < _MOST_SHOWN else override[:_MOST_SHOWN] + '...'}"
        _apply(data, override, where)
        check_plain(data, where, "section.key=value")
    return {key: _with_nulls(value) for key, value in data.items()}


def validate(model: type[M], data: Mapping[str, Any], where: str) -> M:
    """Returns a config model made from plain data.

    Raises:
        BadInputError: The data is invalid; names up to five wrong keys, each with valid values or a similar key.
    """
    check_plain(data, where, "settings")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(model, problem) for problem in error.errors()[:_MOST_PROBLEMS]]
        raise BadInputError(where, "; ".join(problems), remedy="correct the key or value") from error


def _problem(model: type[BaseModel], problem: ErrorDetails) -> str:
    place = [part if isinstance(part, int) else part[:_MOST_SHOWN] for part in problem["loc"]]
    at = setting_at(model, place) or "settings"
    if problem["type"] == "union_tag_invalid" and isinstance(environment := _environment(problem), str):
        return f"{at}: {environment}"
    shown = json.dumps(problem["input"], default=str)
    value = f" (found {shown})" if len(shown) < _MOST_SHOWN else ""
    return f"{at}: {problem['msg']}{value}{_hint(model, problem)}"


def _environment(problem: ErrorDetails) -> str | None:
    """Returns the problem of a table that names an environment which does not fit; None for other tables."""
    name = problem["input"].get("environment") if isinstance(problem["input"], dict) else None
    if not isinstance(name, str):
        return None
    from stages.environments.environment import names_of_kinds

    known = names_of_kinds(_QUOTED.findall(problem.get("ctx", {}).get("expected_tags", "")))
    module, colon, target = name.partition(":")
    file = [f"{module}.py{colon}{target}"] if colon and not module.endswith(".py") else []
    meant = did_you_mean(name, [*known, *file])
    return f"environment {name[:_MOST_SHOWN]!r} is unknown or does not fit here{meant}; expected {', '.join(known)}"


def _hint(model: type[BaseModel], problem: ErrorDetails) -> str:
    """Returns a hint with a similar valid key or value, or the words that a missing key takes; empty if none fits."""
    if problem["type"] == "missing":
        words = choices_of(model, problem["loc"])
        return f", expected one of {', '.join(words)}" if words else ""
    if problem["type"] == "extra_forbidden":
        meant = meant_key(model, problem["loc"])
        return f", did you mean {meant!r}?" if meant else ""
    value, context = problem["input"], problem.get("ctx", {})
    if problem["type"] == "union_tag_invalid":
        value = context["tag"]
    names = _QUOTED.findall(str(context.get("expected") or context.get("expected_tags") or ""))
    return did_you_mean(value, names) if isinstance(value, str) else ""


def _apply(data: dict[str, Any], override: str, where: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        form = "section.key=value, for instance finetune.learning_rate=1e-5"
        raise BadInputError(where, "no key=value", form)
    *parents, leaf = path.strip().split(".")
    table = data
    for parent in parents:
        child = table.setdefault(parent, {})
        if not isinstance(child, dict):
            raise BadInputError(where, f"{parent} is a value", "a section")
        table = child
    table[leaf] = parsed_value(text, where)


def parsed_value(text: str, where: str) -> Any:
    """Returns a value that a person wrote on a command line: parsed TOML, or the text itself if it is not TOML.

    Raises:
        BadInputError: The TOML is too large or nested too deeply.
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):
        parse_toml(f"value = {text}", where, "a value")
        raise


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):  # the string "null" in a list stays a string
        return [_with_nulls(item) if isinstance(item, dict) else item for item in value]
    return None if value == "null" else value
