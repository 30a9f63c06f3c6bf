"""Finds the large artifacts of runs that a retention rule does not keep, and removes them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from artifacts.config import Config
from artifacts.documents.run_files import read_recipe
from artifacts.errors import BadInputError, IntegrityError
from artifacts.layout import (
    IN_ATTEMPT,
    REFRESHED_NAME,
    RUNS,
    TOPS,
    RunLayout,
    artifact_of,
    is_within,
    state_key,
    step_of,
)
from artifacts.lineage import Node, lineage
from artifacts.manifest import Manifest
from artifacts.reading import Artifact, is_published
from artifacts.refresh import Refreshes
from artifacts.refs import Checkpoint, Ref
from artifacts.store.keys import MissingKeyError, is_key
from artifacts.store.store import Store
from artifacts.verification import Damage, damage_error, noted
from flows.lookup.history import read_manifests, read_run, run_names
from flows.upkeep.removal import LOST_AFTER_S, Removal
from stages.models.stored import BASE, holds_adapter
from stages.promotion.promoted import Promoted
from stages.statistics.records import read_decision
from stages.training.saved_state import STATE_FOLLOWS

IterationPart = Literal["optimizer_state", "checkpoint", "reference", "batch", "rollouts", "critic", "critic_state"]
_AT_ITERATION = re.compile(r"(?P<run>[^\s:@/]+)@(?P<iteration>[0-9]{1,7})")
"""Matches the name RUN@ITERATION of a checkpoint or critic."""


class Retention(Config):
    """A rule on the artifacts to keep.

    Manifests, the grades, reports and decisions of iterations, and the ancestors of the promoted and of the best
    checkpoint always stay.
    """

    parts: tuple[IterationPart, ...] = Field(
        default=("optimizer_state", "critic_state"), description="Parts of an iteration that are removed."
    )
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
        description="Kept iterations can be graded again; `retrain` also keeps the weights and the optimizer state "
        "from which they started.",
    )
    comparisons: bool = Field(default=False, description="Also remove the results of `compare`.")

    def __str__(self) -> str:
        removed = f"{', '.join(self.parts)} except the last {self.keep_last}"
        return removed + (f" and every {self.keep_every}th" if self.keep_every else "")


def plan(store: Store, rule: Retention, runs: Sequence[str] = (), damaged: list[Damage] | None = None) -> list[Removal]:
    """Returns the folders that the rule does not keep: run by run, sorted by key.

    Nothing is removed from a run with a damaged artifact, because its dependencies are unknown, or from a run whose
    stages are to be run again (see `awaited`). What any run's recipe names is kept with the full weights below an
    adapter, and so is everything that an unfinished training still needs. As long as a recipe is damaged, all that it
    may name is kept. Artifacts that runs share stay; only their unpublished folders are removed, a day after the
    artifact was made.

    Args:
        runs: Names of runs; all runs if empty.
        damaged: List to which unreadable artifacts and foreign files are added.

    Raises:
        BadInputError: The store has no such run.
        IntegrityError: A run is damaged, and `damaged` is None.
    """
    unreadable: list[Damage] = []
    named = _named(store, unreadable)
    chosen = dict.fromkeys(runs or run_names(store))
    all_of_runs = [removal for run in chosen for removal in _of_run(store, run, rule, damaged)]
    removals = [removal for removal in all_of_runs if removal.manifest is None or removal.key not in named]
    if unreadable and any(map(_may_be_named, removals)):
        if damaged is None:
            raise damage_error(store, unreadable)
        damaged += [damage for damage in unreadable if damage not in damaged]
        removals = [removal for removal in removals if not _may_be_named(removal)]
    return removals if runs else [*removals, *_of_shared(store, damaged)]


def _may_be_named(removal: Removal) -> bool:
    return removal.manifest is not None and removal.key.endswith(
        ("/checkpoint", "/critic", "/critic_state", "/rollouts")
    )


def awaited(store: Store, runs: Sequence[str] = ()) -> list[str]:
    """Returns the runs with an unfinished request to run stages again; among all runs if `runs` is empty."""
    waiting: list[str] = []
    for run in runs or run_names(store):
        with noted([], run):  # a damaged request is reported with its own run
            waiting += [run] if Refreshes.read(store, RunLayout(run)).unfinished else []
    return waiting


def _named(store: Store, damaged: list[Damage]) -> set[str]:
    """Returns the keys of all artifacts that recipes name: teachers, first weights, and rollouts of other runs."""
    named: set[str] = set()
    for run in run_names(store):
        with noted(damaged, RunLayout(run).recipe):
            recipe = read_recipe(store, RunLayout(run))
            for text in _texts(recipe):
                named.add(text.strip("/"))
                if at := _AT_ITERATION.fullmatch(text):
                    named |= _of_iteration(at["run"], int(at["iteration"]), "checkpoint", "critic", "critic_state")
            if pretrain := (recipe.get("value") or {}).get("pretrain"):
                for number in range(pretrain["first"], pretrain["last"] + 1):
                    named |= _of_iteration(pretrain["run"], number, "rollouts")
    for key in (key for key in sorted(named) if is_within(key) and is_key(key)):  # a path may begin like a key
        with noted(damaged, key):
            if is_published(store, key) and holds_adapter(manifest := Artifact.at(store, key).manifest):
                named.add(manifest.inputs[BASE]["key"])
    return named


def _of_iteration(run: str, number: int, *parts: str) -> set[str]:
    """Returns the keys of parts of an iteration; none if the string is not a run's name."""
    with suppress(BadInputError):
        return {RunLayout(run).iteration(number, part) for part in parts}
    return set()


def _texts(value: Any) -> Iterator[str]:
    """Yields all strings in a JSON value, without the keys of objects."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)


def _ancestors(store: Store, run: str, damaged: list[Damage] | None) -> set[str] | None:
    """Returns the keys of the ancestors of one run's promoted and best checkpoints; None if the run is damaged."""
    damage_before = len(damaged or ())
    with noted(damaged, RunLayout(run).recipe):
        promoted = read_run(store, run, damaged).promoted
        nodes: list[Node] = []
        if promoted is not None:
            with noted(damaged, promoted.decision.key):
                nodes = lineage(store, _always_kept(store, promoted), damaged=damaged)
        return {node.ref.key for node in nodes} if len(damaged or ()) == damage_before else None
    return None


def _always_kept(store: Store, promoted: Promoted) -> list[Ref[Any]]:
    try:
        decision = read_decision(promoted.decision, store)
    except BadInputError as error:
        raise IntegrityError(
            error.where, error.found, error.expected, "continue the run, which writes it again"
        ) from error
    kept: list[Ref[Any]] = [promoted.checkpoint, decision.standing.checkpoint, decision.best.checkpoint]
    states = (state_key(checkpoint.key) for checkpoint in kept)
    return kept + [Artifact.at(store, key).ref for key in states if key and is_published(store, key)]


def _of_run(store: Store, run: str, rule: Retention, damaged: list[Damage] | None) -> list[Removal]:
    ancestors = _ancestors(store, run, damaged)
    if ancestors is None:
        return []
    layout, damage_before = RunLayout(run), len(damaged or ())
    keys = store.list(layout.root)
    published = read_manifests(store, dict.fromkeys(filter(None, map(artifact_of, keys))), damaged)
    refreshes = Refreshes()
    with noted(damaged, layout.refresh_requests):
        refreshes = Refreshes.read(store, layout)
    if len(damaged or ()) > damage_before or refreshes.unfinished:  # an unfinished request may still need all files
        return []
    unfinished = _unfinished(published)
    inputs = {ref["key"] for manifest in unfinished.values() for ref in manifest.inputs.values()}
    kept_keys = ancestors | _kept_by_rule(layout, published, rule) | unfinished.keys() | inputs
    finished = {key: manifest for key, manifest in published.items() if key not in unfinished}
    removals = _unpublished_folders(store, layout.root, keys, finished)
    for key, manifest in published.items():
        part = layout.part_of(key)
        removable = (part is not None and part[1] in rule.parts) or (rule.comparisons and layout.is_comparison(key))
        if removable and manifest.pruned is None and manifest.files and key not in kept_keys:
            size = sum(file.size_bytes for file in manifest.files.values())
            removals.append(Removal(key, manifest.kind, size, f"{key}/{manifest.attempt}", manifest))
    return sorted(removals, key=lambda removal: removal.folder)


def _of_shared(store: Store, damaged: list[Damage] | None) -> list[Removal]:
    """Returns the unpublished folders of shared artifacts, sorted by key.

    Another run may still work on a published artifact, so those of the last day are left out.
    """
    removals: list[Removal] = []
    a_day_ago = datetime.now(UTC) - timedelta(seconds=LOST_AFTER_S)
    for top in TOPS:
        if top != RUNS:
            keys = store.list(top)
            folders = {match.group(1, 2) for key in keys if (match := IN_ATTEMPT.match(key))}
            counts = Counter(artifact for artifact, _ in folders)
            several = [key for key, count in counts.items() if count > 1 and is_published(store, key)]
            published = read_manifests(store, dict.fromkeys(several), damaged)
            old = {key: made for key, made in published.items() if made.made_at <= a_day_ago}
            removals += _unpublished_folders(store, top, keys, old)
    return sorted(removals, key=lambda removal: removal.folder)


def _unfinished(published: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Returns the weights whose optimizer state is not published yet: the next command repeats their training."""
    return {
        key: manifest
        for key, manifest in published.items()
        if manifest.facts.get(STATE_FOLLOWS) and (state := state_key(key)) and state not in published
    }


def _kept_by_rule(layout: RunLayout, published: dict[str, Manifest], rule: Retention) -> set[str]:
    parts = {key: part for key in published if (part := layout.part_of(key))}
    trained = [number for number, part in parts.values() if part == "checkpoint"]
    first_of_last = max(trained, default=0) - rule.keep_last + 1

    def stays(number: int) -> bool:
        return number >= first_of_last or bool(rule.keep_every and number % rule.keep_every == 0)

    keys = {key for key, (number, _) in parts.items() if stays(number)}
    if rule.keep_for == "retrain":
        return keys | {ref["key"] for key in keys for ref in published[key].inputs.values()}
    newest = published.get(layout.iteration(max(trained, default=0), "checkpoint"))
    models = [ref["key"] for ref in newest.inputs.values() if ref["kind"] == Checkpoint.__name__] if newest else []
    return keys | set(models)  # the next iteration may need the same reference, or be sampled from older weights


def _unpublished_folders(store: Store, root: str, keys: Iterable[str], published: dict[str, Manifest]) -> list[Removal]:
    """Returns the unpublished folders of published artifacts: lost attempts, step checkpoints, shards and so on.

    Folders of a stage that has published nothing are left out, because the stage may continue from them.
    """
    sizes: dict[tuple[str, str], int] = {}
    kinds: dict[tuple[str, str], str] = {}
    for key in keys:
        if not (match := IN_ATTEMPT.match(key, len(root))):
            continue
        artifact, name, file = f"{root}{match[1]}", match[2], match[3]
        manifest = published.get(artifact)
        if manifest and (name != manifest.attempt or manifest.pruned):
            folder = artifact, name
            with suppress(MissingKeyError):  # a run that goes on has removed it since it was listed
                sizes[folder] = sizes.get(folder, 0) + store.size(key)
            if file == REFRESHED_NAME:
                kinds[folder] = "set aside"
            elif step_of(file.partition("/")[0]) is not None:
                kinds.setdefault(folder, "step checkpoints")
            elif file.startswith(("rollouts", "rounds")):
                kinds.setdefault(folder, "sampled shards")
    return [
        Removal(key, kinds.get((key, name), "lost attempt"), size, f"{key}/{name}")
        for (key, name), size in sizes.items()
    ]
