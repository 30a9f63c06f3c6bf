"""What makes two executions of a stage the same: stage, revision, config, and the digests of the inputs."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from artifacts.refs import Ref


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
        plain = config.model_dump(mode="json") if isinstance(config, BaseModel) else dict(config)
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
