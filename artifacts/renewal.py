"""Making anew what is published already: the stages that a person named, and whatever follows from them."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.manifest import Manifest

_NAME = re.compile(r"([a-z_]+)(?:@(\d+))?")


@dataclass(frozen=True)
class Renewal:
    """What is to be made anew at an address.

    Attributes:
        stages: Names of stages whose artifacts do not count if they are older than `since`.
        since: When that was asked for. What is newer counts, so that a retry keeps what its first attempt made anew.
    """

    stages: frozenset[str]
    since: datetime

    @property
    def label(self) -> str:
        """Names the request in keys."""
        return self.since.strftime("%Y%m%dT%H%M%S%f")

    def outdates(self, manifest: Manifest, identity: Identity) -> bool:
        """Whether a published artifact gives way: it was named, or other inputs made it than those of today."""
        if datetime.fromisoformat(manifest.provenance["created_at"]) >= self.since:
            return False
        found = manifest.identity
        same_work = (found.stage, found.revision, found.config) == (identity.stage, identity.revision, identity.config)
        return identity.stage in self.stages or (same_work and manifest.identity_digest != identity.digest)


@dataclass(frozen=True)
class RenewalRequest:
    """The stages that a person wants redone, `stage` for every iteration or `stage@3` for one.

    Raises:
        BadInputError: A name is none of `known`.
    """

    names: Sequence[str]
    since: datetime
    known: Collection[str]

    def __post_init__(self) -> None:
        for name in self.names:
            match = _NAME.fullmatch(name)
            if match is None or match[1] not in self.known:
                raise BadInputError("refresh", repr(name), ", ".join(self.known), "name a stage, or STAGE@ITERATION")

    def at(self, iteration: int | None) -> Renewal | None:
        """What that means for the artifacts of an iteration, or outside of all; None where nothing was asked for."""
        if not self.names:
            return None
        parts = (name.partition("@") for name in self.names)
        return Renewal(frozenset(stage for stage, at, n in parts if not at or n == str(iteration)), self.since)
