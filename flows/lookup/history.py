"""Reads runs from a store. All views of a run use these records, so they agree with the artifacts."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from artifacts.documents.run_files import read_recipe
from artifacts.errors import BadInputError, NotPublishedError
from artifacts.identity import sha256_json
from artifacts.layout import RUNS, RunLayout, artifact_of, is_run_name
from artifacts.manifest import Manifest
from artifacts.reading import Artifact, is_published
from artifacts.refs import Critic, Kind, PassRates, Puzzles, Report, Texts
from artifacts.store.keys import shown
from artifacts.store.store import MissingKeyError, Store
from artifacts.verification import Damage, listed, noted, stray_damages
from flows.config.recipe import Recipe
from flows.config.settings import validate
from flows.lookup.alarms import with_alarms
from flows.lookup.stages import KINDS, MEASURING, PARTS, REQUIRED, STATE
from stages.promotion.promoted import Promoted, read_promoted
from stages.promotion.reward_alarm import AlarmWindow

_PARALLEL_READS = 8


@dataclass(frozen=True)
class IterationRecord:
    """One iteration.

    Attributes:
        number: Its number.
        manifests: The manifests that it has published so far, by stage.
        alarm: Its comparison of reward with held-out accuracy (see `flows.lookup.alarms`); None if there is none.
        state: The manifest of its optimizer state; None if there is none.
    """

    number: int
    manifests: dict[str, Manifest]
    alarm: AlarmWindow | None = None
    state: Manifest | None = None

    def facts(self, stage: str) -> dict[str, Any]:
        """Returns the facts in a stage's manifest; empty if the stage has not published."""
        return self.manifests[stage].facts if stage in self.manifests else {}

    def kept(self, *stages: str) -> bool:
        """Returns whether all these stages have published and none of their artifacts was pruned."""
        manifests = [self.manifests.get(stage) for stage in stages]
        return all(manifest is not None and manifest.pruned is None for manifest in manifests)

    @property
    def graded(self) -> bool:
        """Whether completions and grades are stored and belong together.

        After `--refresh`, an artifact may be that of an input which has been made again since.
        """
        inputs = (("grade", "rollouts", "sample"), ("teach", "grades", "grade"), ("value", "grades", "grade"))
        made = self.manifests
        return self.kept("sample", "grade") and all(
            made[stage].inputs[name]["digest"] == made[source].digest for stage, name, source in inputs if stage in made
        )

    @property
    def packed(self) -> bool:
        """Whether its batch is of the grades and values that are stored now."""
        if (pack := self.manifests.get("pack")) is None:
            return False
        made = {"grades": self.manifests.get("teach") or self.manifests["grade"], "values": self.manifests.get("value")}
        return {name: ref["digest"] for name, ref in pack.inputs.items() if name in made} == {
            name: manifest.digest for name, manifest in made.items() if manifest is not None
        }

    def seconds(self) -> dict[str, float]:
        """Returns the wall time of each stage when it was executed."""
        return {stage: manifest.provenance["seconds"] for stage, manifest in self.manifests.items()}

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The metrics of each optimizer step (see `stages.training.results.StepMetrics`)."""
        return self.facts("finetune").get("steps", [])


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes:
        layout: Keys of its artifacts.
        recipe: Its frozen recipe, as JSON.
        iterations: Its iterations, in order.
        evaluations: Reports on the test split: `before` GRPO, and `after` it on the checkpoint that is promoted.
        promoted: The promoted checkpoint; None if there is none.
        suites: Reports of backfills (see `flows.backfill`), by suite and iteration.
        texts: Selections of a teacher's texts, by round; empty without a distillation.
        pass_rates: Pass rates from before the first iteration; None without them.
        first_critic: The pretrained critic; None without one.
        shorter: The puzzle set that is left without overlong prompts; None if the run has the whole set.
        ended: Whether a promoted checkpoint was measured on the test split, perhaps one before that of `promoted`.
        keys: Digest of the run's keys in the store, without those of its report: another one if anything is published
            or removed, since each artifact is published below a key of its own.
    """

    layout: RunLayout
    recipe: dict[str, Any]
    iterations: list[IterationRecord]
    evaluations: dict[str, Manifest]
    promoted: Promoted | None
    suites: dict[str, dict[int, Manifest]] = field(default_factory=dict[str, dict[int, Manifest]])
    texts: list[Manifest] = field(default_factory=list[Manifest])
    pass_rates: Manifest | None = None
    first_critic: Manifest | None = None
    shorter: Manifest | None = None
    ended: bool = False
    keys: str = ""

    @property
    def planned_iterations(self) -> int:
        """Number of iterations of its recipe, or of those that it has, if a command added some."""
        return max(self.recipe["iterations"], *(item.number for item in self.iterations), 0)

    @property
    def graded_iterations(self) -> list[IterationRecord]:
        """The iterations whose completions are stored with the advantages that they are trained with.

        Those of a teacher or a critic come after the grades, so that such an iteration counts once they are packed.
        """
        later = self.recipe["teach"] is not None or self.recipe["value"] is not None
        return [item for item in self.iterations if item.graded and (item.packed or not later)]

    @property
    def newest_graded(self) -> IterationRecord | None:
        """The newest of `graded_iterations`; None if there is none."""
        return next(reversed(self.graded_iterations), None)

    def tests(self, store: Store) -> dict[str, Artifact]:
        """Returns the reports of `evaluations` as artifacts."""
        return {when: Artifact(store, self.layout.evaluation(when), made) for when, made in self.evaluations.items()}

    def typed_recipe(self) -> Recipe:
        """Returns the frozen recipe as a config model.

        Raises:
            BadInputError: This version does not accept the recipe.
        """
        return validate(Recipe, self.recipe, f"recipe of {self.layout.run}")

    def recipe_at(self, number: int) -> Recipe:
        """Returns the recipe that an iteration followed: that of its phase, if the run has phases.

        Raises:
            BadInputError: This version does not accept the recipe.
        """
        recipe = self.typed_recipe()
        if not recipe.phases:
            return recipe
        earlier = {item.number: facts for item in self.iterations if (facts := item.facts("advance"))}
        if number in earlier:
            return recipe.in_phase(earlier[number]["phase"] - 1)
        before = earlier.get(number - 1, {"phase": 1, "ended": False})
        return recipe.in_phase(before["phase"] - 1 + before["ended"])


@dataclass(frozen=True)
class RunOverview:
    """One run in a list of runs.

    Attributes:
        run: Its name.
        title: The title of its recipe.
        iterations: Number of iterations of its recipe.
        iterations_done: Number of iterations that have a decision.
        promoted: The promoted checkpoint; None if there is none, or if its file is damaged.
    """

    run: str
    title: str
    iterations: int
    iterations_done: int
    promoted: Promoted | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the run as JSON documents contain it."""
        return {**vars(self), "promoted": self.promoted and self.promoted.as_json()}


def run_names(store: Store) -> list[str]:
    """Returns the names of a store's runs, sorted."""
    names = [name for name in store.folders(RUNS)[0] if is_run_name(name)]
    begun = _readers().map(store.exists, [RunLayout(name).recipe for name in names])
    return [name for name, has_recipe in zip(names, begun, strict=True) if has_recipe]


def overview(store: Store, damaged: list[Damage] | None = None) -> list[RunOverview]:
    """Returns an overview of each run; the time for one does not depend on what its iterations have published.

    Args:
        damaged: A list to which unreadable runs, and folders that are no runs, are added.

    Raises:
        IntegrityError: A run is unreadable, and `damaged` is None.
    """
    names, strays = store.folders(RUNS)
    found: list[list[Damage] | None] = [None if damaged is None else [] for _ in names]

    def read(name: str, unreadable: list[Damage] | None) -> RunOverview | None:
        run = None
        layout = RunLayout(name) if is_run_name(name) else None
        if layout is None or not store.exists(layout.recipe):
            if unreadable is not None and not name.startswith("."):
                unreadable.append(
                    Damage(f"{RUNS}/{shown(name)}", "a folder without a recipe, or of no run's name", "a run")
                )
            return None
        with noted(unreadable, layout.recipe):
            recipe = read_recipe(store, layout)
            done = _iterations_done(store, layout)
            run = RunOverview(layout.run, recipe["title"], max(recipe["iterations"], done), done)
            with noted(unreadable, layout.promoted):
                run = replace(run, promoted=read_promoted(store, layout.promoted))
        return run

    runs = [run for run in _readers().map(read, names, found) if run is not None]
    if damaged is not None:
        damaged += stray_damages(strays)
        damaged += [damage for of_run in found for damage in of_run or ()]
    return runs


def _iterations_done(store: Store, layout: RunLayout) -> int:
    """Returns the number of iterations of GRPO up to the newest one that has a decision."""
    folders = store.folders(layout.iterations)[0]
    numbers = sorted(filter(None, (layout.iteration_of(f"{layout.iterations}/{name}/") for name in folders)))
    while numbers and not is_published(store, layout.iteration(numbers[-1], PARTS["promote"])):
        numbers.pop()
    return len(numbers)


def unknown_run(run: str, store: Store) -> BadInputError:
    """Returns the error that a store has no such run."""
    known = ", ".join(run_names(store)) or "a run"
    return BadInputError(f"run {run!r}", f"not in {store.url}", known, "see `deerstalker runs`")


def read_run(store: Store, run: str, damaged: list[Damage] | None = None, *, up_to: int | None = None) -> RunRecord:
    """Returns the record of a run.

    Args:
        damaged: A list to which unreadable artifacts, and objects that belong to no artifact, are added. The record
            leaves them out.
        up_to: The last iteration that the record has; None for all.

    Raises:
        BadInputError: The store has no such run.
        IntegrityError: The recipe is unreadable; or another artifact is, and `damaged` is None.
    """
    layout = RunLayout(run)
    try:
        recipe = read_recipe(store, layout)
    except MissingKeyError as error:
        raise unknown_run(run, store) from error
    keys = listed(store, layout.root, damaged)
    if damaged is not None:
        damaged += _not_iterations(layout, keys)
    published = {artifact for key in keys if (artifact := artifact_of(key))}
    found = {number for key in published if (number := layout.iteration_of(key)) is not None}
    numbers = sorted(number for number in found if up_to is None or number <= up_to)
    kinds: dict[str, type[Kind]] = {
        **{layout.iteration(number, part): kind for number in numbers for part, kind in KINDS.items()},
        **{layout.evaluation(when): Report for when in ("before", "after")},
        **{key: Report for key in sorted(published) if layout.suite_of(key)},
        **{key: Texts for key in sorted(published) if layout.is_texts(key)},
        layout.pass_rates: PassRates,
        layout.first_critic("critic"): Critic,
    }
    made = read_manifests(store, {key: kind for key, kind in kinds.items() if key in published}, damaged)
    iterations = [_iteration(layout, number, made) for number in numbers]
    evaluations = {when: made[key] for when in ("before", "after") if (key := layout.evaluation(when)) in made}
    promoted = None
    with noted(damaged, layout.promoted):
        promoted = read_promoted(store, layout.promoted)
    ended = "after" in evaluations
    _drop_stale(evaluations, iterations, promoted)
    suites = _suites(layout, made, {item.number: item for item in iterations})
    texts = [manifest for key, manifest in made.items() if layout.is_texts(key)]
    pass_rates, critic = made.get(layout.pass_rates), made.get(layout.first_critic("critic"))
    ordered = with_alarms(iterations, recipe)
    shorter = _shorter_set(store, iterations, recipe, damaged)
    others = sha256_json([key for key in keys if not key.startswith(f"{layout.summary}/")])
    return RunRecord(
        layout, recipe, ordered, evaluations, promoted, suites, texts, pass_rates, critic, shorter, ended, others
    )


def _drop_stale(
    evaluations: dict[str, Manifest], iterations: Sequence[IterationRecord], promoted: Promoted | None
) -> None:
    """Removes reports on the test split whose model is no longer the one before GRPO, or the promoted one."""
    measured = {
        "before": next((_weights_of(item) for item in iterations if item.number == 0), None),
        "after": None if promoted is None else promoted.checkpoint.digest,
    }
    for part, digest in measured.items():
        if part in evaluations and digest is not None and evaluations[part].inputs["weights"]["digest"] != digest:
            del evaluations[part]


def _shorter_set(
    store: Store, iterations: Sequence[IterationRecord], recipe: Mapping[str, Any], damaged: list[Damage] | None
) -> Manifest | None:
    """Returns the puzzle set of a run if overlong prompts were dropped from it, else None."""
    report = next((item.manifests.get("evaluate") for item in iterations), None)
    if report is None or recipe["puzzles"]["overlong"] == "refuse":
        return None
    key: str = report.inputs["puzzles"]["key"]
    manifest = read_manifests(store, {key: Puzzles}, damaged).get(key)
    return manifest if manifest and "dropped" in manifest.facts else None


def _suites(
    layout: RunLayout, made: Mapping[str, Manifest], iterations: Mapping[int, IterationRecord]
) -> dict[str, dict[int, Manifest]]:
    """Returns reports by suite and iteration, without those whose checkpoint has been replaced since."""
    suites: dict[str, dict[int, Manifest]] = {}
    for key, manifest in made.items():
        if not (place := layout.suite_of(key)):
            continue
        suite, number = place
        digest = _weights_of(iterations[number]) if number in iterations else None
        weights = manifest.inputs.get("weights")
        if digest is None or weights is None or weights["digest"] == digest:
            suites.setdefault(suite, {})[number] = manifest
    return suites


def _weights_of(item: IterationRecord) -> str | None:
    """Returns the digest of an iteration's weights; iteration 0 has those that its report measured."""
    if trained := item.manifests.get("finetune"):
        return trained.digest
    report = item.manifests.get("evaluate") if item.number == 0 else None
    return None if report is None else report.inputs["weights"]["digest"]


def last_iteration(store: Store, layout: RunLayout) -> int:
    """Returns the highest iteration that has published an artifact; -1 if there is none."""
    artifacts = [artifact for key in store.list(layout.iterations) if (artifact := artifact_of(key))]
    return max((part[0] for artifact in artifacts if (part := layout.part_of(artifact))), default=-1)


def read_iteration(store: Store, layout: RunLayout, number: int) -> IterationRecord:
    """Returns the record of a finished iteration; iteration 0 has only the stages `evaluate` and `promote`.

    Raises:
        BadInputError: One of its mandatory stages has not published.
    """
    required = {PARTS[stage] for stage in (REQUIRED if number else MEASURING)}
    keys = {part: layout.iteration(number, part) for part in (KINDS if number else required)}
    kinds = {key: KINDS[part] for part, key in keys.items() if part in required or is_published(store, key)}
    made = read_manifests(store, kinds, None)
    for part in sorted(required):
        if keys[part] not in made:
            Artifact.at(store, keys[part])
    return _iteration(layout, number, made)


def _iteration(layout: RunLayout, number: int, made: Mapping[str, Manifest]) -> IterationRecord:
    """Returns the record of an iteration, given manifests by key."""
    keys = {stage: layout.iteration(number, part) for stage, part in PARTS.items()}
    manifests = {stage: made[key] for stage, key in keys.items() if key in made}
    return IterationRecord(number, manifests, state=made.get(layout.iteration(number, STATE)))


def read_manifests(
    store: Store, kinds: Mapping[str, type[Kind] | None], damaged: list[Damage] | None
) -> dict[str, Manifest]:
    """Returns manifests by the keys of their artifacts, without those that are gone: removed, to be made again.

    Args:
        kinds: The kind that each artifact must have; None for any.
        damaged: A list to which unreadable artifacts are added; they are left out.

    Raises:
        IntegrityError: An artifact is unreadable, and `damaged` is None.
    """

    def read(key: str) -> Manifest | None:
        with noted(damaged, key), suppress(NotPublishedError):
            return Artifact.at(store, key, kinds[key]).manifest
        return None

    # Threads hide the latency of a server; to hand a file to one takes longer than to read it from a folder.
    manifests = map(read, kinds) if store.local_path(RUNS) else _readers().map(read, kinds)
    return {key: manifest for key, manifest in zip(kinds, manifests, strict=True) if manifest}


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_PARALLEL_READS, "read")


def _not_iterations(layout: RunLayout, keys: Iterable[str]) -> list[Damage]:
    """Returns the folders beside the iterations that are not iterations."""
    top = f"{layout.iterations}/"
    others = {key for key in keys if key.startswith(top) and layout.iteration_of(key) is None}
    folders = sorted({top + key.removeprefix(top).partition("/")[0] for key in others})
    return [Damage(folder, "a folder of another name", "the number of an iteration, as 0001") for folder in folders]
