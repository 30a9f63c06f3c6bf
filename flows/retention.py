"""Finds the large artifacts of a store that a rule does not keep, and removes them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from artifacts.address import SUPERSEDED_NAME
from artifacts.config import Config
from artifacts.errors import BadInputError, IntegrityError
from artifacts.layout import RunLayout
from artifacts.lineage import Node, lineage
from artifacts.manifest import MANIFEST_NAME, Manifest, Pruned
from artifacts.reading import Artifact
from artifacts.refresh import Refreshes
from artifacts.refs import Ref
from artifacts.store.store import Store
from artifacts.verification import Damage, noted
from flows.lookup.history import read_run, run_names
from stages.promotion.promoted import Promoted
from stages.statistics.records import read_decision

Part = Literal["training_state", "checkpoint", "reference", "batch", "rollouts"]
_IN_ATTEMPT = re.compile(r"(.+?)/((?:attempt|progress)-[0-9a-f]+(?:-[0-9]{8}T[0-9]+)?)/(.+)")
"""Matches the key of a file of an attempt: artifact, folder of the attempt (named in `artifacts.address`), and file."""


class Retention(Config):
    """What is kept, besides manifests, grades, reports, decisions and a promoted checkpoint's ancestors."""

    parts: tuple[Part, ...] = Field(default=("training_state",), description="Parts of an iteration that are removed.")
    keep_last: int = Field(
        default=2,
        ge=1,
        le=1_000_000,
        description="Number of a run's last iterations that stay complete, to continue from.",
    )
    keep_every: int = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description="Every iteration whose number is a multiple of this stays complete; 0: none.",
    )
    keep_for: Literal["regrade", "retrain"] = Field(
        default="retrain",
        description="Kept iterations can be graded again; `retrain` also keeps the weights and the training state from "
        "which they started.",
    )
    comparisons: bool = Field(default=False, description="Also remove the results of `compare`.")

    def __str__(self) -> str:
        what = f"{', '.join(self.parts)} except the last {self.keep_last}"
        return what + (f" and every {self.keep_every}th" if self.keep_every else "")


@dataclass(frozen=True)
class Removal:
    """Files to remove.

    Attributes:
        key: Key of the artifact that is removed, or to which the attempt belongs.
        what: The artifact's kind, `step checkpoints`, `sampled shards`, `set aside` or `lost attempt`.
        size_bytes: Total size of the files.
        folder: The folder that is removed.
        manifest: Manifest of a removed artifact, which stays and records the removal; None for an attempt.
    """

    key: str
    what: str
    size_bytes: int
    folder: str
    manifest: Manifest | None = None


def plan(store: Store, rule: Retention, runs: Sequence[str] = (), damaged: list[Damage] | None = None) -> list[Removal]:
    """Returns the files that the rule does not keep, in the order of their keys.

    Nothing is removed from a run with a damaged artifact, because its dependencies are unknown. Other runs do not
    depend on its artifacts.

    Args:
        runs: Names of runs; all runs if empty.
        damaged: List to which unreadable artifacts and foreign files are added.

    Raises:
        BadInputError: The store has no such run.
        IntegrityError: Something is damaged, and `damaged` is None.
    """
    existing = run_names(store)
    for run in set(runs) - set(existing):
        read_run(store, run)
    safe: set[str] = set()
    sound: set[str] = set()
    for run in existing:
        others = runs and run not in runs and damaged is not None
        ancestors = _ancestors(store, run, [] if others else damaged)
        if ancestors is not None:
            safe |= ancestors
            sound.add(run)
    return [removal for run in runs or existing if run in sound for removal in _of_run(store, run, rule, safe, damaged)]


def _ancestors(store: Store, run: str, damaged: list[Damage] | None) -> set[str] | None:
    """Returns the keys of the ancestors of one run's promoted and best checkpoints; None if the run is damaged."""
    known = len(damaged or ())
    with noted(damaged, RunLayout(run).recipe):
        promoted = read_run(store, run, damaged).promoted
        nodes: list[Node] = []
        if promoted is not None:
            with noted(damaged, promoted.decision.key):
                nodes = lineage(store, _always_kept(store, promoted), damaged=damaged)
        return {node.ref.key for node in nodes} if len(damaged or ()) == known else None
    return None


def _always_kept(store: Store, promoted: Promoted) -> list[Ref[Any]]:
    try:
        decision = read_decision(promoted.decision, store)
    except BadInputError as error:
        raise IntegrityError(error.where, error.found, error.expected, "run again: that writes it again") from error
    return [promoted.checkpoint, decision.standing.checkpoint, decision.best.checkpoint]


def remove(store: Store, removals: Iterable[Removal], rule: Retention) -> None:
    """Removes files; first marks the manifest as pruned, so that the missing files are not taken for damage."""
    pruned = Pruned(at=datetime.now(UTC).isoformat(timespec="seconds"), rule=str(rule))
    for item in removals:
        if item.manifest is not None:
            marked = item.manifest.model_copy(update={"pruned": pruned})
            store.write_bytes(f"{item.key}/{MANIFEST_NAME}", marked.to_bytes())
        store.delete(item.folder)


def _of_run(store: Store, run: str, rule: Retention, safe: set[str], damaged: list[Damage] | None) -> list[Removal]:
    layout, known = RunLayout(run), len(damaged or ())
    keys = store.list(layout.root)
    published: dict[str, Manifest] = {}
    for key in (key.removesuffix(f"/{MANIFEST_NAME}") for key in keys if key.endswith(f"/{MANIFEST_NAME}")):
        with noted(damaged, key):
            published[key] = Artifact.at(store, key).manifest
    renewals = Refreshes()
    with noted(damaged, layout.refresh_requests):
        renewals = Refreshes.read(store, layout)
    if len(damaged or ()) > known:
        return []
    kept = _kept(layout, published, rule)
    removals = _lost_attempts(store, layout, keys, published)
    if renewals.unfinished:  # the promoted checkpoint was made from the artifacts that are set aside
        removals = [removal for removal in removals if removal.what != "set aside"]
    for key, manifest in published.items():
        removable = _part(layout, key) in rule.parts or (
            rule.comparisons and key.startswith(f"{layout.root}/comparisons/")
        )
        if removable and manifest.pruned is None and manifest.files and key not in safe | kept:
            size = sum(file.size_bytes for file in manifest.files.values())
            removals.append(Removal(key, manifest.kind, size, f"{key}/{manifest.attempt}", manifest))
    return sorted(removals, key=lambda removal: removal.folder)


def _kept(layout: RunLayout, published: dict[str, Manifest], rule: Retention) -> set[str]:
    trained = [_number(layout, key) for key in published if _part(layout, key) == "checkpoint"]
    first_of_last = max(trained, default=0) - rule.keep_last + 1

    def stays(number: int) -> bool:
        return number >= first_of_last or bool(rule.keep_every and number % rule.keep_every == 0)

    kept = {key for key in published if _part(layout, key) and stays(_number(layout, key))}
    if rule.keep_for == "retrain":
        kept |= {ref["key"] for key in tuple(kept) for ref in published[key].inputs.values()}
    return kept


def _lost_attempts(
    store: Store, layout: RunLayout, keys: Iterable[str], published: dict[str, Manifest]
) -> list[Removal]:
    """Lists folders beside published ones: lost attempts, artifacts that a refresh set aside, step checkpoints, shards.

    Folders of a stage that has published nothing are not listed, because the stage may continue from them.
    """
    sizes: dict[tuple[str, str], int] = {}
    kinds: dict[tuple[str, str], str] = {}
    for key in keys:
        if not (match := _IN_ATTEMPT.match(key, len(layout.root))):
            continue
        artifact, name, file = f"{layout.root}{match[1]}", match[2], match[3]
        manifest = published.get(artifact)
        if manifest and (name != manifest.attempt or manifest.pruned):
            folder = artifact, name
            sizes[folder] = sizes.get(folder, 0) + store.size(key)
            if file == SUPERSEDED_NAME:
                kinds[folder] = "set aside"
            elif file.startswith("step-"):
                kinds.setdefault(folder, "step checkpoints")
            elif file.startswith("rollouts-"):
                kinds.setdefault(folder, "sampled shards")
    return [
        Removal(key, kinds.get((key, name), "lost attempt"), size, f"{key}/{name}")
        for (key, name), size in sizes.items()
    ]


def _part(layout: RunLayout, key: str) -> str:
    """Returns the part of an iteration that has this key; empty if it is none."""
    parts = key.removeprefix(f"{layout.root}/iterations/").split("/")
    return parts[1] if layout.iteration_of(key) is not None and len(parts) == 2 else ""


def _number(layout: RunLayout, key: str) -> int:
    number = layout.iteration_of(key)
    assert number is not None  # `_part` has checked
    return number
