"""Identities of stage executions: stage, revision, config, and the digests of the inputs.

Two executions of the same identity make the same artifact, so the second one is skipped.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict

from artifacts.refs import Ref


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


IN_IDENTITY = "identity"
"""Context in which a config is written as plain JSON for an identity: without the places of files, which differ between
machines (see `stages.processes.user_file.UserFunction`)."""


def seed_of(digest: str) -> int:
    """Returns a seed from the first 12 digits of a digest (hex), such as that of an input of the identity."""
    return int(digest[:12], 16)


def settings_of(config: BaseModel) -> dict[str, Any]:
    """Returns a config as plain JSON for an identity."""
    return config.model_dump(mode="json", context=IN_IDENTITY)


class Identity(BaseModel):
    """The identity of one stage execution, as manifests store it. Hardware and addresses are not part of it.

    Attributes:
        stage: Name of the stage.
        revision: Number that is raised by hand when the stage's results change; a refactoring keeps it.
        config: The stage's resolved config as plain JSON.
        inputs: Content digest of each input artifact, by role.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stage: str
    revision: int
    config: dict[str, Any]
    inputs: dict[str, str]

    @classmethod
    def of(
        cls, stage: str, revision: int, config: BaseModel | Mapping[str, Any], **inputs: Ref[Any] | None
    ) -> "Identity":
        """Returns the identity of a stage execution with a config and input refs; inputs that are None are ignored."""
        plain = settings_of(config) if isinstance(config, BaseModel) else dict(config)
        digests = {role: ref.digest for role, ref in inputs.items() if ref is not None}
        return cls(stage=stage, revision=revision, config=plain, inputs=digests)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 (hex) of the identity."""
        return sha256_json(self.model_dump())


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
