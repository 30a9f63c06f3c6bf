"""Identities of stage executions: stage, revision, config, and the digests of the inputs.

Two executions of the same identity make the same artifact, so the second one is skipped.
"""

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, Discriminator, Tag

from artifacts.refs import Ref

M = TypeVar("M", bound=BaseModel)


def canonical_json(value: object) -> str:
    """Returns JSON with sorted keys, no spaces and no NaN, so that equal values give equal text.

    Raises:
        ValueError: The value holds a NaN or an infinity.
        TypeError: The value holds something that is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: object) -> str:
    """Returns the SHA-256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True)
class Added:
    """Marks a setting that was added to a config later: `Annotated[int, Added(before=0)] = 3`.

    Attributes:
        before: The value that describes how the stage worked before the setting existed. A setting with this value is
            not part of an identity, so artifacts from before are still found. Recipes that were frozen before the
            setting existed get this value.
    """

    before: Any


def settings_of(config: BaseModel) -> dict[str, Any]:
    """Returns a config as plain JSON, without `Added` settings that have their `before` value.

    The same holds for configs in it, also in lists.
    """
    plain = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if any(isinstance(mark, Added) and mark.before == value for mark in field.metadata):
            del plain[name]
        else:
            plain[name] = _settings_in(value, plain[name])
    return plain


def _settings_in(value: object, plain: Any) -> Any:
    """Returns the plain JSON of a field, with `settings_of` in place of each config in it."""
    if isinstance(value, BaseModel):
        return settings_of(value)
    if isinstance(value, (list, tuple)):
        items = cast("list[object]", value)
        return [_settings_in(item, part) for item, part in zip(items, plain, strict=True)]
    return plain


def with_added(kind: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Returns a config's stored JSON, in which settings `Added` since then have their `before` value."""
    filled = dict(data)
    for name, field in kind.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Added):
                before = mark.before.model_dump(mode="json") if isinstance(mark.before, BaseModel) else mark.before
                filled.setdefault(name, list(before) if isinstance(before, tuple) else before)
        if name in filled:
            filled[name] = _with_added_in(field.rebuild_annotation(), filled[name])
    return filled


def _with_added_in(hint: Any, stored: Any) -> Any:
    """Returns the stored JSON of a field, with `with_added` applied to each config that its type hint names."""
    if isinstance(stored, list):
        element = _element_of(hint)
        return [_with_added_in(element, item) for item in cast("list[Any]", stored)]
    if not isinstance(stored, dict):
        return stored
    kind = _kind_of(hint, cast("dict[str, Any]", stored))
    return stored if kind is None else with_added(kind, stored)


def _element_of(hint: Any) -> Any:
    """Returns the type hint of a list's elements; None if the hint names no list."""
    if get_origin(hint) is list:
        return get_args(hint)[0]
    return next((element for part in get_args(hint) if (element := _element_of(part)) is not None), None)


def _kind_of(hint: Any, stored: dict[str, Any]) -> type[BaseModel] | None:
    """Returns the class of the config that a stored table is; None if the type hint names none.

    For a union with a discriminator function, it is the class with the table's tag; for any other union, the first
    class none of whose literals contradicts the table.
    """
    if isinstance(hint, type):
        return hint if issubclass(hint, BaseModel) and _may_be(hint, stored) else None
    if get_origin(hint) is not Annotated:
        return next((kind for part in get_args(hint) if (kind := _kind_of(part, stored)) is not None), None)
    inner, *marks = get_args(hint)
    chosen = next((mark for mark in marks if isinstance(mark, Discriminator)), None)
    if chosen is None or not callable(chosen.discriminator):
        return _kind_of(inner, stored)
    tagged: dict[Hashable, Any] = {
        mark.tag: part for part in get_args(inner) for mark in get_args(part)[1:] if isinstance(mark, Tag)
    }
    tag = chosen.discriminator(stored)
    return _kind_of(tagged[tag], stored) if tag in tagged else None


def _may_be(kind: type[BaseModel], stored: dict[str, Any]) -> bool:
    """Returns whether no literal of a config's class contradicts a stored table."""
    annotations = {name: field.annotation for name, field in kind.model_fields.items() if name in stored}
    return all(get_origin(hint) is not Literal or stored[name] in get_args(hint) for name, hint in annotations.items())


def continued(config: M, stored: Mapping[str, Any]) -> M:
    """Returns the config that continues work begun under a stored config.

    It is `config`, except that settings `Added` since then have their `before` value unless a person set them.

    Args:
        config: The present config.
        stored: The config under which the work was begun, as JSON.
    """
    update: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value, part = getattr(config, name), stored.get(name)
        added = next((mark for mark in field.metadata if isinstance(mark, Added)), None)
        if added is not None and name not in stored and name not in config.model_fields_set:
            update[name] = added.before
        elif part is not None:
            update[name] = _continued_in(value, part)
    return config.model_copy(update=update)


def _continued_in(value: Any, stored: Any) -> Any:
    """Returns the value of a field, with `continued` applied to each config in it whose stored JSON is known."""
    if isinstance(value, BaseModel) and isinstance(stored, dict):
        return continued(value, cast("dict[str, Any]", stored))
    if isinstance(value, list) and isinstance(stored, list):
        items, parts = cast("list[Any]", value), cast("list[Any]", stored)
        return [_continued_in(*pair) for pair in zip(items, parts, strict=True)] if len(items) == len(parts) else items
    return value


@dataclass(frozen=True)
class Identity:
    """The identity of one stage execution. Hardware and addresses are not part of it.

    Attributes:
        stage: Name of the stage.
        revision: Number that is raised by hand when the stage's results change; a refactoring keeps it.
        config: The stage's resolved config as plain JSON.
        inputs: Content digest of each input artifact, by role.
    """

    stage: str
    revision: int
    config: dict[str, Any]
    inputs: dict[str, str]

    @classmethod
    def of(
        cls, stage: str, revision: int, config: BaseModel | Mapping[str, Any], **inputs: Ref[Any] | None
    ) -> "Identity":
        """Returns the identity of a stage execution with a config and input refs; inputs that are None do not count."""
        plain = settings_of(config) if isinstance(config, BaseModel) else dict(config)
        return cls(stage, revision, plain, {role: ref.digest for role, ref in inputs.items() if ref is not None})

    @cached_property
    def digest(self) -> str:
        """The SHA-256 (hex) of the identity."""
        return sha256_json(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Returns the identity as manifests store it."""
        return {"stage": self.stage, "revision": self.revision, "config": self.config, "inputs": self.inputs}


@dataclass(frozen=True)
class Difference:
    """A setting in which two tables of settings differ.

    Attributes:
        setting: Its name with its sections: `finetune.loss.clip_high`.
        values: Its value in each table, by side (`a`, `b`); a side without the setting is missing.
    """

    setting: str
    values: dict[str, Any]


def different_settings(a: Mapping[str, Any], b: Mapping[str, Any], section: str = "") -> list[Difference]:
    """Returns the settings in which two nested tables of JSON values differ, in the order of `a`, then of `b`.

    Args:
        a: One table.
        b: The other table.
        section: Prefix of the settings' names, with a dot at its end; empty at the top.
    """
    changes: list[Difference] = []
    for key in dict.fromkeys([*a, *b]):
        values = {side: table[key] for side, table in (("a", a), ("b", b)) if key in table}
        if len(values) == 2 and all(isinstance(value, dict) for value in values.values()):
            changes += different_settings(values["a"], values["b"], f"{section}{key}.")
        elif len(values) == 1 or values["a"] != values["b"]:
            changes.append(Difference(f"{section}{key}", values))
    return changes


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Returns a line `setting: stored -> current` for each setting that differs, sorted.

    A missing setting counts as None.
    """
    changes = [
        (item.setting, item.values.get("a"), item.values.get("b")) for item in different_settings(stored, current)
    ]
    return sorted(f"{setting}: {before!r} -> {now!r}" for setting, before, now in changes if before != now)
