"""Names in messages: suggestions for misspelled ones, and lists of many."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

_ALIKE = 0.6
"""Smallest `difflib` ratio at which one name is suggested for another."""


def closest(name: str, names: Iterable[str]) -> str | None:
    """Returns the name most similar to `name`, ignoring case, or else the first one that it abbreviates.

    For example, `lr` abbreviates `learning_rate`. Returns None if there is no such name.
    """
    plain = {known.lower().replace("-", "_"): known for known in names}
    plain_name = name.lower().replace("-", "_")[:100]
    if near := difflib.get_close_matches(plain_name, plain, n=1, cutoff=_ALIKE):
        return plain[near[0]]
    return next((known for whole, known in plain.items() if _abbreviates(plain_name, whole)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns a hint such as `, did you mean 'quickstart'?`; empty if no name is similar."""
    near = closest(name, names)
    return f", did you mean {near!r}?" if near else ""


def listed(names: Sequence[str], most: int) -> str:
    """Returns the first names and the number of the others, such as `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def meant_key(model: type[BaseModel], place: Sequence[int | str]) -> str | None:
    """Returns the setting that an unknown key probably means, with its sections: `finetune.loss.clip_high`.

    It is the most similar name in the same section, or else the setting of exactly this name with the fewest sections.
    None if there is neither, or if it is the refused key itself, which only another variant of the section has.

    Args:
        model: The config that refused the key.
        place: Location of the key, as in an error of pydantic.
    """
    models, path, key = _section_of(model, place)
    near = closest(key, {name: None for kind in models for name in kind.model_fields})
    if near:
        return ".".join([*path, near]) if near != key else None
    equal = [name for name in setting_names(model) if name.rpartition(".")[2] == key]
    if ".".join([*path, key]) in equal:
        return None
    return min(equal, key=lambda name: name.count("."), default=None)


def choices_of(model: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Returns the words that a setting accepts; empty if it accepts other values.

    Args:
        model: The config that has the setting.
        place: Location of the setting, as in an error of pydantic.
    """
    models, _, key = _section_of(model, place)
    kinds = [kind.model_fields[key].annotation for kind in models if key in kind.model_fields]
    return list({str(word): None for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)})


def _section_of(model: type[BaseModel], place: Sequence[int | str]) -> tuple[list[type[BaseModel]], list[str], str]:
    """Returns the configs that the section of a setting may hold, the names of its sections, and its own name."""
    *sections, (key, models, _) = _walk(model, [part for part in place if isinstance(part, str)])
    return models, [name for name, _, is_tag in sections if not is_tag], key


def setting_at(model: type[BaseModel], place: Sequence[int | str]) -> str:
    """Returns a location of an error of pydantic as a person writes it: without the tags of unions."""
    return ".".join(name for name, _, is_tag in _walk(model, place) if not is_tag)


def _walk(model: type[BaseModel], place: Sequence[int | str]) -> Iterator[tuple[str, list[type[BaseModel]], bool]]:
    """Yields each part of a location, the configs that may hold it, and whether it is the tag of one of them.

    pydantic puts the tag of a union's member into the location.
    """
    models = [model]
    for part in map(str, place):
        tagged = [kind for kind in models if part in _tags(kind)]
        holding = [kind for kind in models if part in kind.model_fields]
        yield part, models, bool(tagged) and not holding
        models = [held for kind in holding for held in models_of(kind, part)] or tagged or models


def setting_names(model: type[BaseModel]) -> Iterator[str]:
    """Yields the name of every setting of a config with its sections, in order of declaration."""
    for name in model.model_fields:
        yield name
        for part in models_of(model, name):
            yield from (f"{name}.{inner}" for inner in setting_names(part))


def models_of(model: type[BaseModel], field: str) -> list[type[BaseModel]]:
    """Returns the config models that a field may hold."""
    return list(_models(model.model_fields[field].annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _tags(model: type[BaseModel]) -> list[str]:
    return [value for field in model.model_fields.values() for value in get_args(field.annotation)[:1]]


def _abbreviates(short: str, name: str) -> bool:
    """Returns whether `short` is the beginning of a name or the initials of its words."""
    initials = "".join(word[0] for word in name.split("_") if word)
    return len(short) > 1 and (initials == short or (len(short) > 2 and name.startswith(short)))
