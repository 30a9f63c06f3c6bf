"""Making anew what is published already: the stages that a person named, and whatever follows from them.

Requests stand in the store, beside the run's recipe. So a command that was interrupted goes on where it was, and one
that comes later, with no such wish of its own, finishes what is half redone.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.seal import check_seal, sealed_json
from artifacts.store import Store

_NAME = re.compile(r"([a-z_]+)(?:@(\d+))?")


@dataclass(frozen=True)
class Renewal:
    """What is to be made anew at an address.

    Attributes:
        stages: Names of stages, and when they were asked for. Their artifacts do not count if they are older; what is
            newer counts, so that a retry keeps what its first attempt made anew.
        since: When anything of the run was last asked for. What was made before it, of other inputs than those of
            today, follows from something that was made anew, and does not count either.
    """

    stages: Mapping[str, datetime]
    since: datetime

    def label(self, stage: str) -> str:
        """Names the request for a stage in keys; empty where it was not named."""
        return _label(self.stages[stage]) if stage in self.stages else ""

    def outdates(self, manifest: Manifest, identity: Identity) -> bool:
        """Whether a published artifact gives way."""
        made, found = manifest.made_at, manifest.identity
        if identity.stage in self.stages and made < self.stages[identity.stage]:
            return True
        same_work = (found.stage, found.revision, found.config) == (identity.stage, identity.revision, identity.config)
        return made < self.since and same_work and manifest.identity_digest != identity.digest


@dataclass(frozen=True)
class RenewalRequest:
    """The stages that a person wants redone, `stage` for every iteration or `stage@3` for one.

    Attributes:
        since: When that was asked for.
        done: Whether everything that may follow from it has been made, or found as it was.
    """

    names: tuple[str, ...]
    since: datetime
    done: bool = False

    def named_at(self, iteration: int | None) -> list[str]:
        """The stages named for an iteration, or for what stands outside of all."""
        parts = (name.partition("@") for name in self.names)
        return [stage for stage, at, number in parts if not at or number == str(iteration)]


@dataclass(frozen=True)
class Renewals:
    """All requests of a run, the oldest first."""

    requests: tuple[RenewalRequest, ...] = ()

    @classmethod
    def read(cls, store: Store, layout: RunLayout) -> Self:
        """What was asked for so far.

        Raises:
            IntegrityError: A request is damaged.
        """
        found: list[RenewalRequest] = []
        for key in store.list(layout.renewals):
            data = store.read_bytes(key)
            check_seal(data, f"{store.url}/{key}")
            told = json.loads(data)
            found.append(RenewalRequest(tuple(told["names"]), datetime.fromisoformat(told["since"]), told["done"]))
        return cls(tuple(sorted(found, key=lambda request: request.since)))

    @property
    def unfinished(self) -> bool:
        """Whether artifacts may stand side by side of which one was made anew and one does not follow it yet."""
        return any(not request.done for request in self.requests)

    def at(self, iteration: int | None) -> Renewal | None:
        """What they mean for the artifacts of an iteration, or outside of all; None where nothing was asked for."""
        if not self.requests:
            return None
        stages = {stage: request.since for request in self.requests for stage in request.named_at(iteration)}
        return Renewal(stages, self.requests[-1].since)


def ask(store: Store, layout: RunLayout, names: Sequence[str], since: datetime, known: Collection[str]) -> Renewals:
    """Records a request, unless the same one is not finished yet or was recorded by an earlier attempt; returns all.

    Raises:
        BadInputError: A name is none of `known`.
    """
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or match[1] not in known:
            raise BadInputError("refresh", repr(name), ", ".join(known), "name a stage, or STAGE@ITERATION")
    before = Renewals.read(store, layout)
    wanted = RenewalRequest(tuple(names), since)
    open_already = any(not old.done and set(old.names) == set(names) for old in before.requests)
    if not names or open_already or any(old.since == since for old in before.requests):
        return before
    _write(store, layout, wanted)
    return Renewals(tuple(sorted((*before.requests, wanted), key=lambda request: request.since)))


def finish(store: Store, layout: RunLayout, renewals: Renewals) -> None:
    """Records that nothing is left to do of these requests."""
    for request in renewals.requests:
        if not request.done:
            _write(store, layout, replace(request, done=True))


def _write(store: Store, layout: RunLayout, request: RenewalRequest) -> None:
    told = {"names": request.names, "since": request.since.isoformat(), "done": request.done}
    store.write_bytes(f"{layout.renewals}/{_label(request.since)}.json", sealed_json(told))


def _label(since: datetime) -> str:
    return since.strftime("%Y%m%dT%H%M%S%f")
