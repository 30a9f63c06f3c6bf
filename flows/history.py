"""A run as its artifacts tell it: everything shown to people is read from the store, so it cannot drift from it."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from artifacts.errors import BadInputError
from artifacts.identity import with_added
from artifacts.layout import RUNS, RunLayout, is_run_name
from artifacts.manifest import MANIFEST_NAME, Manifest
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Decision, Grades, Kind, Report, Rollouts
from artifacts.store import MissingKeyError, Store
from artifacts.stored_json import read_promoted, read_recipe
from artifacts.verification import Damage, noted, noted_strays
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

_KINDS: dict[str, type[Kind]] = {
    "sample": Rollouts,
    "grade": Grades,
    "pack": Batch,
    "finetune": Checkpoint,
    "evaluate": Report,
    "promote": Decision,
}
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


def overview(store: Store, damaged: list[Damage] | None = None) -> list[dict[str, Any]]:
    """Every run of a store in short, from one listing and two small files a run.

    Args:
        damaged: Where runs are added that cannot be read, and whatever else stands among them.

    Raises:
        IntegrityError: A run cannot be read, and `damaged` is None.
    """
    keys = store.list(RUNS)
    if damaged is not None:
        noted_strays(store, RUNS, damaged)
        damaged += _no_runs(keys)
    runs: list[dict[str, Any]] = []
    ends = f"/{STAGES['promote']}/{MANIFEST_NAME}"
    for layout in map(RunLayout, _names(keys)):
        with noted(damaged, layout.recipe):
            recipe = read_recipe(store, layout)
            numbers = [layout.iteration_of(key) for key in keys if key.endswith(ends)]
            runs.append(
                {
                    "run": layout.run,
                    "title": recipe["title"],
                    "iterations": recipe["iterations"],
                    "iterations_done": sum(number is not None and number > 0 for number in numbers),
                    "promoted": None,
                }
            )
            with noted(damaged, layout.promoted):
                runs[-1]["promoted"] = read_promoted(store, layout)
    return runs


def read_run(store: Store, run: str, damaged: list[Damage] | None = None) -> RunRecord:
    """Reads a run.

    Args:
        damaged: Where artifacts are added that cannot be read, and whatever else stands among them; the record is that
            of the others.

    Raises:
        BadInputError: The store has no such run.
        IntegrityError: Its recipe cannot be read; or another artifact, and `damaged` is None.
    """
    layout = RunLayout(run)
    try:
        recipe = with_added(Recipe, read_recipe(store, layout))
    except MissingKeyError as error:
        raise BadInputError(
            f"run {run!r}", f"not in {store.url}", ", ".join(run_names(store)) or "a run", "see `deerstalker runs`"
        ) from error
    keys, ends = store.list(layout.root), f"/{MANIFEST_NAME}"
    if damaged is not None:
        noted_strays(store, layout.root, damaged)
        damaged += _no_iterations(layout, keys)
    published = {key.removesuffix(ends) for key in keys if key.endswith(ends)}
    numbers = sorted({number for key in published if (number := layout.iteration_of(key)) is not None})
    wanted = {
        (number, stage): key
        for number in numbers
        for stage, part in STAGES.items()
        if (key := layout.iteration(number, part)) in published
    }
    manifests = _manifests(store, wanted, damaged, {at: _KINDS[at[1]] for at in wanted})
    iterations = [
        IterationRecord(number, {stage: manifests[number, stage] for stage in STAGES if (number, stage) in manifests})
        for number in numbers
    ]
    measured = {part: key for part in ("before", "after") if (key := layout.evaluation(part)) in published}
    evaluations = _manifests(store, measured, damaged, dict.fromkeys(measured, Report))
    promoted = None
    with noted(damaged, layout.promoted):
        promoted = read_promoted(store, layout)
    suites = _suites(store, layout, published, {item.number: item for item in iterations}, damaged)
    return RunRecord(layout, recipe, iterations, evaluations, promoted, suites)


def _suites(
    store: Store,
    layout: RunLayout,
    published: Iterable[str],
    iterations: Mapping[int, IterationRecord],
    damaged: list[Damage] | None,
) -> dict[str, dict[int, Manifest]]:
    """Reports by suite and iteration; not those of a checkpoint that was made anew since."""
    keys = {place: key for key in sorted(published) if (place := layout.suite_of(key))}
    found: dict[str, dict[int, Manifest]] = {}
    for (suite, number), manifest in _manifests(store, keys, damaged, dict.fromkeys(keys, Report)).items():
        trained = iterations[number].manifests.get("finetune") if number in iterations else None
        weights = manifest.inputs.get("weights")
        if trained is None or weights is None or weights["digest"] == trained.digest:
            found.setdefault(suite, {})[number] = manifest
    return found


def last_iteration(store: Store, layout: RunLayout) -> int:
    """The highest iteration of which something is published."""
    keys = [key for key in store.list(f"{layout.root}/iterations") if key.split("/")[5:] == [MANIFEST_NAME]]
    return max((number for key in keys if (number := layout.iteration_of(key)) is not None), default=-1)


def read_iteration(store: Store, layout: RunLayout, number: int) -> IterationRecord:
    """Reads one finished iteration; 0 measures what the first one starts from.

    Raises:
        BadInputError: One of its stages has not published.
    """
    stages = STAGES if number else {stage: STAGES[stage] for stage in ("evaluate", "promote")}
    keys = {stage: layout.iteration(number, part) for stage, part in stages.items()}
    return IterationRecord(number, _manifests(store, keys, None, _KINDS))


def _manifests(
    store: Store, keys: Mapping[K, str], damaged: list[Damage] | None, kinds: Mapping[K, type[Kind]]
) -> dict[K, Manifest]:
    def read(name: K) -> Manifest | None:
        with noted(damaged, keys[name]):
            return Artifact.at(store, keys[name], kinds[name]).manifest
        return None

    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return {name: manifest for name, manifest in zip(keys, pool.map(read, keys), strict=True) if manifest}


def _names(keys: Iterable[str]) -> list[str]:
    names = {part[1] for part in (key.split("/") for key in keys) if part[2:] == ["recipe.json"]}
    return sorted(filter(is_run_name, names))


def _no_runs(keys: Iterable[str]) -> list[Damage]:
    """Folders among the runs that are none; hidden ones are not looked at."""
    folders = {key.split("/")[1] for key in keys if key.count("/") > 1}
    no_runs = sorted(name for name in folders.difference(_names(keys)) if not name.startswith("."))
    return [Damage(f"{RUNS}/{name}", "a folder without a recipe, or of no run's name", "a run") for name in no_runs]


def _no_iterations(layout: RunLayout, keys: Iterable[str]) -> list[Damage]:
    """Folders among the iterations that are none."""
    top = f"{layout.root}/iterations/"
    others = {key for key in keys if key.startswith(top) and layout.iteration_of(key) is None}
    folders = sorted({top + key.removeprefix(top).partition("/")[0] for key in others})
    return [Damage(folder, "a folder of another name", "the number of an iteration, as 0001") for folder in folders]
