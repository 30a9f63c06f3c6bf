"""Writes `docs/reference/settings.md` from the config models: `python -m tests.support.settings_page`.

The page lists every setting of recipes, profiles and files of models with its values, its default and its meaning. It
is made from the JSON schemas of the config models.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.config import LARGEST_FLOAT, LARGEST_INT, Config
from flows.config.models_file import ApiModel, CheckpointModel
from flows.config.recipes import Recipe
from stages.context import Profile
from stages.curriculum.overlay import SECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

_HEAD = """\
# Settings

Every setting of a recipe (what a run learns), of a profile (what the machine offers) and of a file of models
(what `deerstalker benchmark` asks). `deerstalker train --set sample.puzzles_per_iteration=64` changes a
setting of the recipe, `--set-profile engine.replicas=2` one of the profile. `deerstalker recipes show NAME` prints the
values of a recipe. Set an optional value to `null` to disable it (in TOML, which has no null, write the string "null").

A section's `seed` is the recipe's `seed`, unless the section has its own. A default in brackets belongs to a section or
a kind that is not used by default. `required` means that there is no default. A number without a stated bound is
bounded only by its type (whole numbers: 2^53 - 1, others: 1e18).

`python -m tests.support.settings_page` writes this page from the config models; a test compares it with them.
"""

Schema = Mapping[str, Any]


def settings_page() -> str:
    """Returns the text of the page."""
    chapters = {
        "Recipes": Recipe,
        "Profiles": Profile,
        "Models behind an API": ApiModel,
        "Checkpoints in a benchmark": CheckpointModel,
    }
    return "\n".join([_HEAD, *(line for title, model in chapters.items() for line in _chapter(title, model))])


def _chapter(title: str, model: type[Config]) -> Iterator[str]:
    """Yields the lines on a model: its own values first, then a table for each section."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    plain, sections = dict[str, Schema](), dict[str, Schema]()
    for name, field in schema["properties"].items():
        (sections if _parts(field) else plain)[name] = field
    yield f"## {title}\n"
    yield from _table(_rows(plain, schema.get("required", ()), definitions))
    for name, field in sections.items():
        yield f"## {title}: `{name}`\n"
        yield f"{_about(field, definitions)}\n"
        twin = next((other for other in sections if sections[other].get("$ref") == field.get("$ref", "")), name)
        if twin != name:
            yield f"The settings are those of [`{twin}`](#{title.lower()}-{twin}), with the same defaults.\n"
            continue
        yield from _table(_rows({name: field}, schema.get("required", ()), definitions))


def _about(field: Schema, definitions: Schema) -> str:
    """Returns the description of a section, or that of its model if the field has none."""
    parts = _parts(field)
    if len(parts) > 1:
        return "The settings depend on the kind of the section."
    return " ".join((field.get("description") or definitions[parts[0]].get("description", "")).split())


def _table(rows: Iterator[tuple[str, str, str, str]]) -> Iterator[str]:
    yield "| setting | values | default | meaning |"
    yield "|---|---|---|---|"
    for cells in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _rows(
    fields: Mapping[str, Schema], required: Any, definitions: Schema, prefix: str = "", *, optional: bool = False
) -> Iterator[tuple[str, str, str, str]]:
    """Yields a row for each setting below `prefix`.

    Args:
        optional: The fields belong to a section or a kind that is not used by default.
    """
    for name, field in fields.items():
        path, parts = f"{prefix}{name}", _parts(field)
        kinds = field.get("items", {}) if "oneOf" in field.get("items", {}) else None
        if "$ref" in field.get("items", {}):
            default = "required" if name in required else _default(field)
            yield f"`{path}`", "list of sections", f"({default})" if optional else default, field["description"]
            model = definitions[_parts(field["items"])[0]]
            own = {key: value for key, value in model["properties"].items() if path != "phases" or key not in SECTIONS}
            yield from _rows(own, model.get("required", ()), definitions, f"{path}[].", optional=True)
            continue
        if kinds is not None:
            yield from _list_row(path, field, definitions)
            parts = _parts(kinds)
        elif not parts:
            default = "required" if name in required else _default(field)
            meaning = " ".join(field.get("description", "").split())
            yield f"`{path}`", _values(field), f"({default})" if optional else default, meaning
            continue
        elif prefix or len(parts) > 1 or _nullable(field):
            yield from _section_row(path, field, definitions, required=name in required)
        for number, part in enumerate(parts):
            model = definitions[part]
            off = optional or (_nullable(field) and not field.get("default")) or number > 0 or kinds is not None
            inner = dict(model["properties"])
            kind = next((key for key, value in inner.items() if _word(value)), None)
            label = path
            if kind and len(parts) > 1:
                label = f"{path}[{_word(inner.pop(kind))}]"
            yield from _rows(inner, model.get("required", ()), definitions, f"{label}.", optional=off)


def _list_row(path: str, field: Schema, definitions: Schema) -> Iterator[tuple[str, str, str, str]]:
    """Yields the row of a list of sections of several kinds."""
    parts = [definitions[part] for part in _parts(field["items"])]
    kinds = {_word(value): part for part in parts for value in part["properties"].values() if _word(value)}
    about = " ".join(f"`{word}`: {_first_line(part)}" for word, part in kinds.items())
    meaning = f"{field['description']}. {about} The settings of a kind have its name in brackets below."
    yield f"`{path}`", "list of sections", _default(field), meaning


def _section_row(
    path: str, field: Schema, definitions: Schema, *, required: bool
) -> Iterator[tuple[str, str, str, str]]:
    """Yields the row of a section that has several kinds, or that can be null; none of any other section."""
    parts = [definitions[part] for part in _parts(field)]
    if len(parts) > 1:
        (key,) = {key for part in parts for key, value in part["properties"].items() if _word(value)}
        words = [_word(part["properties"][key]) for part in parts]
        values = ", ".join(f"`{word}`" for word in words)
        default = "required" if required else f"`{words[0]}`"
        about = " ".join(f"`{word}`: {_first_line(part)}" for word, part in zip(words, parts, strict=True))
        yield f"`{path}.{key}`", values, default, f"{about} The settings of a kind have its name in brackets below."
    elif _nullable(field):
        yield (
            f"`{path}`",
            "a section, or null",
            "a section" if field.get("default") else "null",
            " ".join((field.get("description") or _first_line(parts[0])).split()),
        )


def _word(field: Schema) -> str | None:
    """Returns the word that selects a kind: its only value, or an example where names of a form select it."""
    return field.get("const") or next(iter(field.get("examples", ())), None)


def _first_line(model: Schema) -> str:
    return str(model.get("description", "")).partition("\n")[0]


def _parts(field: Schema) -> list[str]:
    """Returns the names of the models that a field may hold; none for a plain value."""
    options = [field, *field.get("anyOf", ()), *field.get("oneOf", ())]
    return [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]


def _nullable(field: Schema) -> bool:
    return any(option.get("type") == "null" for option in field.get("anyOf", ()))


def _default(field: Schema) -> str:
    return f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else "required"


def _values(field: Schema) -> str:
    """Returns the values that a plain setting takes, in words."""
    if options := field.get("anyOf"):
        return ", or ".join(_values(option) for option in options)
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "$ref" in field or "oneOf" in field:
        return "section"
    match field["type"]:
        case "object":
            return "table"
        case "integer":
            return f"whole number{_range(field, LARGEST_INT)}"
        case "number":
            return f"number{_range(field, LARGEST_FLOAT)}"
        case "boolean":
            return "`true`, `false`"
        case "array" if "prefixItems" in field:
            return f"list of {len(field['prefixItems'])}, each a {_values(field['prefixItems'][0])}"
        case "array":
            return f"list of {_values(field['items'])}"
        case "null":
            return "null"
        case _:
            return f"text matching `{field['pattern']}`" if "pattern" in field else "text"


def _range(field: Schema, largest: float) -> str:
    """Returns the bounds of a number, except those of its type."""
    bounds: list[str] = []
    known = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    for key, words in known.items():
        if key in field and abs(field[key]) != largest:
            bounds.append(f"{words} {_number(field[key])}")
    return f" {' '.join(bounds)}" if bounds else ""


def _number(value: float) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:g}"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
