"""`deerstalker recipes`, `recipes show` and `recipes diff`."""

import json
import re
from typing import Any, cast

from cyclopts import App
from rich.table import Table

from flows.cli.console.options import OUTPUT, Output, RecipeChanges
from flows.cli.console.output import print_differences, print_json, terminal
from flows.cli.console.version import version

recipes = App(name="recipes", version=version)


@recipes.default
def list_recipes(*, options: Output = OUTPUT) -> None:
    """List the recipes that come with the package."""
    from flows.config.recipes import load_recipe, recipe_names

    listed = {name: load_recipe(name) for name in recipe_names()}
    if options.json:
        print_json([{"name": name, "title": recipe.title} for name, recipe in listed.items()])
        return
    table = Table.grid(padding=(0, 2))
    for name, recipe in listed.items():
        table.add_row(name, recipe.title)
    terminal().print(table)


@recipes.command
def show(name: str, /, *, set_: RecipeChanges = (), options: Output = OUTPUT) -> None:
    """Show a recipe with every default filled in, as a run stores it: TOML to begin a recipe of your own with.

    Args:
        name: Name of a recipe, or path of a TOML file.
    """
    from flows.config.recipes import load_recipe

    resolved: dict[str, Any] = load_recipe(name, set_).model_dump(mode="json")
    if options.json:
        print_json(resolved)
        return
    console = terminal()
    for line in _lines(resolved):
        console.print(line, soft_wrap=True)


@recipes.command
def diff(a: str, b: str, /, *, options: Output = OUTPUT) -> None:
    """List the settings in which two recipes differ, with every default filled in.

    Args:
        a: Name of a recipe, or path of a TOML file.
        b: Name or path of another.
    """
    from flows.config.recipe_diff import differences
    from flows.config.recipes import load_recipe

    differing = differences(load_recipe(a), load_recipe(b))
    if options.json:
        print_json({"a": a, "b": b, "settings": [{"setting": item.setting, **item.values} for item in differing]})
        return
    if not differing:
        terminal().print(f"{a} and {b} have the same settings", soft_wrap=True)
        return
    print_differences(a, b, {item.setting: item.values for item in differing})


def _lines(value: dict[str, Any], path: str = "") -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        name = f"{path}.{_key(key)}" if path else _key(key)
        lines += _lines(item, name) if isinstance(item, dict) and item else [f"{name} = {_toml(item)}"]
    return lines


def _toml(value: Any) -> str:
    """Returns a value of a recipe as TOML; null, which TOML lacks, as the text that recipes use for it."""
    match value:
        case None:
            return '"null"'
        case dict():
            pairs = cast(dict[str, Any], value).items()
            return "{" + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in pairs) + "}"
        case list():
            return f"[{', '.join(map(_toml, cast(list[Any], value)))}]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | int():
            return json.dumps(value)
        case _:
            return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
