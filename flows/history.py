"""A run as its artifacts tell it: everything shown to people is read from the store, so it cannot drift from it."""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from artifacts.errors import BadInputError
from artifacts.identity import with_added
from artifacts.layout import RUNS, RunLayout
from artifacts.manifest import MANIFEST_NAME, Manifest
from artifacts.reading import Artifact
from artifacts.store import MissingKeyError, Store
from flows.recipes import Recipe

STAGES = {
    "sample": "rollouts",
    "grade": "grades",
    "pack": "batch",
    "finetune": "checkpoint",
    "evaluate": "report",
    "promote": "decision",
}
"""The stages of an iteration in their order, with the part of the layout each publishes."""

_PARALLEL_READS = 8

K = TypeVar("K")


@dataclass(frozen=True)
class IterationRecord:
    """One iteration: the manifests of what it has published so far, by stage."""

    number: int
    manifests: dict[str, Manifest]

    def facts(self, stage: str) -> dict[str, Any]:
        """What a stage measured; empty where it has not published."""
        return self.manifests[stage].facts if stage in self.manifests else {}

    def kept(self, *stages: str) -> bool:
        """Whether what these stages published has its files still."""
        found = [self.manifests.get(stage) for stage in stages]
        return all(manifest is not None and manifest.pruned is None for manifest in found)

    def seconds(self) -> dict[str, float]:
        """Wall time of each stage when it was executed."""
        return {stage: manifest.provenance["seconds"] for stage, manifest in self.manifests.items()}

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Metrics of each optimizer step (see `stages.training.metrics.StepMetrics`)."""
        return self.facts("finetune").get("steps", [])


@dataclass(frozen=True)
class RunRecord:
    """One run: its frozen recipe, its iterations, and its measurements on the test split."""

    layout: RunLayout
    recipe: dict[str, Any]
    iterations: list[IterationRecord]
    evaluations: dict[str, Manifest]  # `before` and `after`, on the test split
    promoted: dict[str, Any] | None
    suites: dict[str, dict[int, Manifest]] = field(default_factory=dict[str, dict[int, Manifest]])
    """Reports that were made afterwards (see `flows.backfill`), by suite and iteration."""


def run_names(store: Store) -> list[str]:
    """Names of the runs in a store."""
    return _names(store.list(RUNS))


def overview(store: Store) -> list[dict[str, Any]]:
    """Every run of a store in short, from one listing and two small files a run."""
    keys = store.list(RUNS)
    runs: list[dict[str, Any]] = []
    for name in _names(keys):
        layout = RunLayout(name)
        recipe = json.loads(store.read_bytes(layout.recipe))
        ends = f"/{STAGES['promote']}/{MANIFEST_NAME}"
        done = [key for key in keys if key.startswith(f"{layout.root}/iterations/") and key.endswith(ends)]
        runs.append(
            {
                "run": name,
                "title": recipe["title"],
                "iterations": recipe["iterations"],
                "iterations_done": len([key for key in done if int(key.split("/")[3]) > 0]),
                "promoted": json.loads(store.read_bytes(layout.promoted)) if layout.promoted in keys else None,
            }
        )
    return runs


def read_run(store: Store, run: str) -> RunRecord:
    """Reads a run.

    Raises:
        BadInputError: The store has no such run.
    """
    layout = RunLayout(run)
    try:
        recipe = with_added(Recipe, json.loads(store.read_bytes(layout.recipe)))
    except MissingKeyError as error:
        raise BadInputError(
            f"run {run!r}", f"not in {store.url}", ", ".join(run_names(store)) or "a run", "see `deerstalker runs`"
        ) from error
    ends = f"/{MANIFEST_NAME}"
    published = {key.removesuffix(ends) for key in store.list(layout.root) if key.endswith(ends)}
    numbers = sorted({int(key.split("/")[3]) for key in published if key.startswith(f"{layout.root}/iterations/")})
    wanted = {
        (number, stage): key
        for number in numbers
        for stage, part in STAGES.items()
        if (key := layout.iteration(number, part)) in published
    }
    manifests = _manifests(store, wanted)
    iterations = [
        IterationRecord(number, {stage: manifests[number, stage] for stage in STAGES if (number, stage) in manifests})
        for number in numbers
    ]
    evaluations = _manifests(
        store, {part: key for part in ("before", "after") if (key := layout.evaluation(part)) in published}
    )
    try:
        promoted = json.loads(store.read_bytes(layout.promoted))
    except MissingKeyError:
        promoted = None
    suites = _suites(store, layout, published, {item.number: item for item in iterations})
    return RunRecord(layout, recipe, iterations, evaluations, promoted, suites)


def _suites(
    store: Store, layout: RunLayout, published: Iterable[str], iterations: Mapping[int, IterationRecord]
) -> dict[str, dict[int, Manifest]]:
    """Reports by suite and iteration; not those of a checkpoint that was made anew since."""
    keys = [key for key in sorted(published) if key.startswith(f"{layout.root}/suites/")]
    found: dict[str, dict[int, Manifest]] = {}
    for key, manifest in _manifests(store, {key: key for key in keys}).items():
        *_, suite, number = key.split("/")
        trained = iterations[int(number)].manifests.get("finetune") if int(number) in iterations else None
        weights = manifest.inputs.get("weights")
        if trained is None or weights is None or weights["digest"] == trained.digest:
            found.setdefault(suite, {})[int(number)] = manifest
    return found


def last_iteration(store: Store, layout: RunLayout) -> int:
    """The highest iteration of which something is published."""
    keys = [key.split("/") for key in store.list(f"{layout.root}/iterations")]
    return max((int(parts[3]) for parts in keys if parts[5:] == [MANIFEST_NAME]), default=-1)


def read_iteration(store: Store, layout: RunLayout, number: int) -> IterationRecord:
    """Reads one finished iteration; 0 measures what the first one starts from.

    Raises:
        BadInputError: One of its stages has not published.
    """
    stages = STAGES if number else {stage: STAGES[stage] for stage in ("evaluate", "promote")}
    keys = {stage: layout.iteration(number, part) for stage, part in stages.items()}
    return IterationRecord(number, _manifests(store, keys))


def _manifests(store: Store, keys: Mapping[K, str]) -> dict[K, Manifest]:
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        artifacts = pool.map(partial(Artifact.at, store), keys.values())
        return {name: artifact.manifest for name, artifact in zip(keys, artifacts, strict=True)}


def _names(keys: Iterable[str]) -> list[str]:
    return sorted({part[1] for part in (key.split("/") for key in keys) if part[2:] == ["recipe.json"]})
