"""What makes two executions of a stage the same: stage, revision, config, and the digests of the inputs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel

from artifacts.refs import Ref

M = TypeVar("M", bound=BaseModel)


def canonical_json(value: object) -> str:
    """JSON with sorted keys, no spaces and no NaN, so that equal values give equal text.

    Raises:
        ValueError: The value holds a NaN or an infinity.
        TypeError: The value holds something that is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: object) -> str:
    """SHA-256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True)
class Added:
    """Marks a setting that its config has not always had: `Annotated[int, Added(before=0)] = 3`.

    Everything that was made before the setting existed agrees with this value. Where the setting has it, identities
    leave the setting out, so that those artifacts are found again; a recipe frozen before it existed has that value.
    """

    before: Any


def settings_of(config: BaseModel) -> dict[str, Any]:
    """Returns a config as plain JSON, without the `Added` settings by which it works as it did before them."""
    plain = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if any(isinstance(mark, Added) and mark.before == value for mark in field.metadata):
            del plain[name]
        elif isinstance(value, BaseModel):
            plain[name] = settings_of(value)
    return plain


def with_added(kind: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Returns the stored JSON of a config with the settings filled in that were `Added` after it was stored."""
    filled = dict(data)
    for name, field in kind.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Added):
                filled.setdefault(name, mark.before)
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel) and isinstance(filled.get(name), dict):
                filled[name] = with_added(part, filled[name])
    return filled


def continued(config: M, stored: Mapping[str, Any]) -> M:
    """Returns a config as work that was begun under a stored one goes on.

    Settings that were `Added` since then, and that nobody chose, have the values of before.

    Args:
        stored: The JSON under which the work was begun.
    """
    update: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value, part = getattr(config, name), stored.get(name)
        added = next((mark for mark in field.metadata if isinstance(mark, Added)), None)
        if added is not None and name not in stored and name not in config.model_fields_set:
            update[name] = added.before
        elif isinstance(value, BaseModel) and isinstance(part, dict):
            update[name] = continued(value, cast("dict[str, Any]", part))
    return config.model_copy(update=update)


@dataclass(frozen=True)
class Identity:
    """Identity of one stage execution. Hardware and addresses are not part of it.

    Attributes:
        stage: Name of the stage.
        revision: Bumped by hand when the stage's meaning changes; a refactoring leaves it alone.
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
        """Builds an identity from a config model and input refs; inputs that are None are left out."""
        plain = settings_of(config) if isinstance(config, BaseModel) else dict(config)
        return cls(stage, revision, plain, {role: ref.digest for role, ref in inputs.items() if ref is not None})

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the identity."""
        return sha256_json(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """The identity as it stands in a manifest."""
        return {"stage": self.stage, "revision": self.revision, "config": self.config, "inputs": self.inputs}


def differences(found: object, wanted: object, path: str = "") -> list[str]:
    """Lists where two JSON values differ, as `path: found -> wanted`, in sorted order of paths."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted})
        return [
            line
            for key in keys
            for line in differences(found.get(key), wanted.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if found == wanted else [f"{path}: {found!r} -> {wanted!r}"]
