"""Requests to make published artifacts again: those of the stages that a person named, and those that depend on them.

Requests are stored beside the run's recipe, so an interrupted command continues where it stopped, and a later command
finishes the work of an earlier one without being asked again.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from artifacts.documents.self_checksum import check_seal, sealed_json
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import IN_ATTEMPT, REFRESHED_NAME, RunLayout, artifact_of, manifest_key
from artifacts.manifest import Manifest
from artifacts.refs import Decision
from artifacts.store.store import MissingKeyError, Store

_NAME = re.compile(r"([a-z_]+)(?:@([0-9]{1,7}))?")


@dataclass(frozen=True)
class Refresh:
    """The stages whose artifacts are to be made again, for one iteration.

    Attributes:
        stages: Time of the request by name of stage. Older artifacts of the stage are outdated; newer ones are not, so
            a retry keeps the artifacts that its first attempt made.
        since: Time of the run's last request. An older artifact is also outdated if its inputs differ from the present
            ones, because one of them was made again.
        replaced: Names of stages whose artifact is outdated if it was made from other inputs, even after `since`.
        any_config: Whether changed settings count as changed inputs. Those of an iteration also follow from its inputs:
            another batch may have another number of steps and learning rates; new figures may move the end of a phase.
    """

    stages: Mapping[str, datetime]
    since: datetime
    replaced: Collection[str] = ()
    any_config: bool = False

    def label(self, stage: str) -> str:
        """Returns the name of a stage's request in keys; empty if there is none."""
        return _label(self.stages[stage]) if stage in self.stages else ""

    def outdates(self, manifest: Manifest, identity: Identity) -> bool:
        """Returns whether a stage execution with this identity must replace a published artifact."""
        made, stored = manifest.made_at, manifest.identity
        if identity.stage in self.stages and made < self.stages[identity.stage]:
            return True
        same_work = (stored.stage, stored.revision) == (identity.stage, identity.revision)
        same_work &= self.any_config or stored.config == identity.config
        old = made < self.since or identity.stage in self.replaced
        return old and same_work and manifest.identity_digest != identity.digest


@dataclass(frozen=True)
class RefreshRequest:
    """A person's request to refresh stages.

    Attributes:
        names: `stage` for every iteration, or `stage@3` for one iteration.
        since: Time of the request.
        done: Whether every artifact that depends on these stages was made again or found to be unaffected.
    """

    names: tuple[str, ...]
    since: datetime
    done: bool = False

    def named_at(self, iteration: int | None) -> list[str]:
        """Returns the stages that are named for an iteration, or with None for the artifacts outside iterations."""
        parts = (name.partition("@") for name in self.names)
        return [stage for stage, at, number in parts if not at or number == str(iteration)]


@dataclass(frozen=True)
class Refreshes:
    """All requests of a run, oldest first."""

    requests: tuple[RefreshRequest, ...] = ()

    @classmethod
    def read(cls, store: Store, layout: RunLayout) -> Self:
        """Reads the requests of a run from the store.

        Raises:
            IntegrityError: A request is damaged.
        """
        requests: list[RefreshRequest] = []
        for key in store.list(layout.refresh_requests):
            data = store.read_bytes(key)
            check_seal(data, f"{store.url}/{key}")
            plain = json.loads(data)
            since = datetime.fromisoformat(plain["since"])
            requests.append(RefreshRequest(tuple(plain["names"]), since, plain["done"]))
        return cls(tuple(sorted(requests, key=lambda request: request.since)))

    @property
    def unfinished(self) -> bool:
        """Whether a request is not done, so that artifacts may depend on inputs that have been made again."""
        return any(not request.done for request in self.requests)

    def at(self, iteration: int | None) -> Refresh | None:
        """Returns the stages to run again for an iteration; None if there is no request.

        Args:
            iteration: Number of the iteration; None for the artifacts outside the iterations.
        """
        if not self.requests:
            return None
        stages = {stage: request.since for request in self.requests for stage in request.named_at(iteration)}
        return Refresh(stages, self.requests[-1].since)


def record_request(
    store: Store, layout: RunLayout, names: Sequence[str], since: datetime, known: Collection[str], *, last: int
) -> Refreshes:
    """Records a request and returns all requests of the run.

    Records nothing if `names` is empty, if a request for the same names is not done yet, or if an earlier attempt
    recorded this request.

    Args:
        store: The store.
        layout: Keys of the run.
        names: Stages, each `stage` or `stage@iteration`.
        since: Time of the request.
        known: Names of the stages that can be requested.
        last: The last iteration that the command runs.

    Raises:
        BadInputError: A name is not in `known`, its iteration has no such artifact, the files that a stage would have
            to read again were pruned, or an artifact was made in the future.
    """
    request = RefreshRequest(tuple(_written_once(name, known) for name in names), since)
    stored = Refreshes.read(store, layout)
    open_already = any(not old.done and set(old.names) == set(request.names) for old in stored.requests)
    if not names or open_already or any(old.since == since for old in stored.requests):
        return stored
    _refuse_impossible(store, layout, request, last)
    _write(store, layout, request)
    return Refreshes(tuple(sorted((*stored.requests, request), key=lambda item: item.since)))


def _written_once(name: str, known: Collection[str]) -> str:
    """Returns a name as requests store it: `sample@3` for `sample@0003`."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in known:
        raise BadInputError("refresh", repr(name), ", ".join(known), "name a stage, or STAGE@ITERATION")
    return match[1] if match[2] is None else f"{match[1]}@{int(match[2])}"


def _refuse_impossible(store: Store, layout: RunLayout, request: RefreshRequest, last: int) -> None:
    """Refuses a request that could not be carried out.

    An iteration that it names may lack the artifact. Inputs that it does not make again may have been pruned, or an
    artifact may be dated in the future, so that it is newer than the request.

    An artifact that depends on a named stage is made again only if its inputs change. After a request for all
    iterations, the first change may be in any of them, so that only artifacts of named stages are sure to be new.

    Raises:
        BadInputError: Names the first such artifact.
    """
    made: dict[str, Manifest] = {}
    outdated: dict[str, Manifest] = {}
    for key in store.list(layout.root):
        if layout.is_aside(key):
            continue
        if artifact := artifact_of(key):
            made[artifact] = Manifest.from_bytes(store.read_bytes(key), key)
        elif (attempt := IN_ATTEMPT.fullmatch(key)) and attempt[3] == REFRESHED_NAME:
            outdated[attempt[1]] = Manifest.from_bytes(store.read_bytes(key), key)
    _refuse_unknown(layout, request, outdated | made, last)
    named = {key for key, one in made.items() if one.identity.stage in request.named_at(layout.iteration_of(key))}
    again, added = set(named), True
    while added:
        dependent = {key for key, one in made.items() if any(ref["key"] in again for ref in one.inputs.values())}
        added, again = bool(dependent - again), again | dependent
    for key in sorted(named):
        made[key].refuse_future(key)
    remade = again if all("@" in name for name in request.names) else named
    for key in sorted(again):
        for ref in made[key].inputs.values():
            manifest = made.get(ref["key"]) or _manifest(store, ref["key"])
            if manifest is not None and manifest.pruned is not None and ref["key"] not in remade:
                raise BadInputError(
                    f"refresh {', '.join(request.names)}",
                    f"{key} would be made again from {ref['key']}, whose files were pruned",
                    "inputs whose files are in the store",
                    "name a later iteration, as STAGE@ITERATION",
                )


def _refuse_unknown(layout: RunLayout, request: RefreshRequest, made: Mapping[str, Manifest], last: int) -> None:
    """Refuses `stage@iteration` that this command does not reach, or that is finished without such an artifact.

    Args:
        made: Manifests by key, with those that another refresh has outdated: it may have been interrupted.
        last: The last iteration that the command runs.
    """
    of_iterations = {(one.identity.stage, layout.iteration_of(key)) for key, one in made.items()}
    decided = [layout.iteration_of(key) or 0 for key, one in made.items() if one.kind == Decision.__name__]
    for name in request.names:
        stage, at, number = name.partition("@")
        if at and (stage, int(number)) not in of_iterations and not max(decided, default=-1) < int(number) <= last:
            raise BadInputError(
                f"refresh {name}", f"iteration {number} has published none", "the number of an iteration that has",
                f"see `deerstalker show {layout.run}`",
            )  # fmt: skip
        if at and int(number) > last:
            problem = f"this command ends with iteration {last}"
            raise BadInputError(f"refresh {name}", problem, f"an end of at least {number}, or an earlier iteration")


def _manifest(store: Store, key: str) -> Manifest | None:
    try:
        return Manifest.from_bytes(store.read_bytes(manifest_key(key)), key)
    except MissingKeyError:
        return None


def record_done(store: Store, layout: RunLayout, refreshes: Refreshes) -> None:
    """Records that the requests are done."""
    for request in refreshes.requests:
        if not request.done:
            _write(store, layout, replace(request, done=True))


def _write(store: Store, layout: RunLayout, request: RefreshRequest) -> None:
    plain = {"names": request.names, "since": request.since.isoformat(), "done": request.done}
    store.write_bytes(f"{layout.refresh_requests}/{_label(request.since)}.json", sealed_json(plain))


def _label(since: datetime) -> str:
    return since.strftime("%Y%m%dT%H%M%S%f")
