"""The name that somebody probably meant."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

_ALIKE = 0.6
"""Least `difflib` ratio of two names of which one may be meant for the other."""


def closest(name: str, names: Iterable[str]) -> str | None:
    """The name most like `name`, letter case aside, or the first that it abbreviates: `lr` for `learning_rate`."""
    plain = {known.lower().replace("-", "_"): known for known in names}
    given = name.lower().replace("-", "_")[:100]
    if near := difflib.get_close_matches(given, plain, n=1, cutoff=_ALIKE):
        return plain[near[0]]
    return next((known for whole, known in plain.items() if _abbreviates(given, whole)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`, did you mean 'quickstart'?`; empty where no name is alike."""
    near = closest(name, names)
    return f", did you mean {near!r}?" if near else ""


def meant_key(model: type[BaseModel], place: Sequence[int | str]) -> str | None:
    """The setting that was probably meant by an unknown key, with its sections before it.

    One of the same section by its letters, else one of that very name in any section.

    Args:
        model: What the settings were meant for.
        place: Where the key stands, as in an error of pydantic.
    """
    *sections, key = (str(part) for part in place if isinstance(part, str))
    models = [model]
    path: list[str] = []
    for section in sections:
        inner = [part for kind in models if section in kind.model_fields for part in models_of(kind, section)]
        if inner:
            path.append(section)
        tagged = [kind for kind in models if section in _tags(kind)]  # of a union, pydantic names the member
        models = inner or tagged or models
    near = closest(key, {name: None for kind in models for name in kind.model_fields})
    if near:
        return ".".join([*path, near])
    return next((name for name in setting_names(model) if name.rpartition(".")[2] == key), None)


def setting_names(model: type[BaseModel]) -> Iterator[str]:
    """Every setting of a config, sections before it, in order of declaration."""
    for name in model.model_fields:
        yield name
        for part in models_of(model, name):
            yield from (f"{name}.{inner}" for inner in setting_names(part))


def models_of(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    """The configs that a field may hold."""
    return list(_models(model.model_fields[field].annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _tags(model: type[BaseModel]) -> list[str]:
    return [value for field in model.model_fields.values() for value in get_args(field.annotation)[:1]]


def _abbreviates(short: str, name: str) -> bool:
    """Whether `short` begins the name, or is made of its words' initials."""
    initials = "".join(word[0] for word in name.split("_") if word)
    return len(short) > 1 and (initials == short or (len(short) > 2 and name.startswith(short)))
