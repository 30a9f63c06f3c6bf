"""The `backfill` flow: evaluates checkpoints of finished runs on another suite of puzzles."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Literal, Self

from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import Field, model_validator

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact, is_published
from artifacts.refresh import Refreshes
from artifacts.refs import Checkpoint, Puzzles, Ref, Report
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.config.limits import cut_below_training, evaluated_as_trained
from flows.config.suites import suite_key
from flows.inputs.suites import measured_puzzles
from flows.lookup.history import RunRecord, read_run
from flows.opening import ProfileName, ProfileOverrides, StoreAddress, fitting_profile, opened_stages
from flows.orchestration.api_errors import API_ERRORS
from flows.orchestration.artifact_keys import slug
from flows.orchestration.tasks import map_some_at_once
from flows.report.shown_run import publish_report
from flows.session.calls import Stages
from stages.context import Profile, StageContext
from stages.evaluate import EvaluateConfig, evaluate
from stages.sampling.config import EngineHardware
from stages.sampling.replicas.placement import fills_gpus
from stages.strategies.figures import stored_figures


class BackfillRequest(Config):
    """Parameters of the `backfill` flow."""

    runs: list[str] = Field(min_length=1, description="Names of the runs whose checkpoints are evaluated.")
    suite: str = Field(description="Name of the suite; the same name with the same settings continues.")
    puzzles: str | None = Field(
        default=None,
        description="RUN:SPLIT, KEY:SPLIT of a puzzle set, or a JSON file in the published format; null: the puzzles "
        "of the suite in the package, or in the TOML file, that `suite` names.",
    )
    checkpoints: Literal["all", "every", "best"] = Field(
        default="all",
        description="All checkpoints; those of some iterations (see `every`) and the last; or only the promoted one.",
    )
    every: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="With checkpoints = `every`: the iterations whose number is a multiple of this.",
    )
    config: EvaluateConfig = Field(
        default_factory=EvaluateConfig,
        description="Number of puzzles, and sampling; limits that are not set are those of each run.",
    )
    at_once: int = Field(
        default=1, ge=1, le=64, description="Number of evaluations at the same time, each with its own engine."
    )
    store: StoreAddress = DEFAULT_STORE
    profile: ProfileName = "cpu"
    profile_overrides: ProfileOverrides = Field(default=[])

    @model_validator(mode="after")
    def _every_is_read(self) -> Self:
        if self.checkpoints != "every" and self.changed("every"):
            raise ValueError(f"every has no effect with checkpoints = '{self.checkpoints}': set that to 'every'")
        return self


class Backfilled(Document):
    """Result of the `backfill` flow.

    Attributes:
        runs: Facts of the suite's reports by run and iteration.
        evaluated: Number of reports that this flow made.
        cached: Number of reports that existed.
        skipped: `RUN@ITERATION` of checkpoints without a report whose files have been pruned.
        reports: Address of each run's page, which the flow has rewritten.
    """

    suite: str
    runs: dict[str, dict[int, dict[str, Any]]]
    evaluated: int
    cached: int
    skipped: list[str]
    reports: dict[str, str]


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run."""

    run: str
    iteration: int
    checkpoint: Ref[Checkpoint]
    pruned: bool = False

    def __str__(self) -> str:
        return f"{self.run}@{self.iteration}"


@flow(name="backfill", flow_run_name="backfill {request.suite}", persist_result=False)
def backfill(request: BackfillRequest) -> Backfilled:
    """Evaluates checkpoints that have no report on the suite yet, and draws each run's learning curve on the suite.

    A report is stored under its run, suite and iteration. Existing reports are not made again, and an interrupted
    evaluation continues with the missing puzzles. If a checkpoint fails, the others are still evaluated.

    Args:
        request: Runs, checkpoints, suite, puzzles, store and profile.

    Raises:
        BadInputError: A run, the puzzles or the suite's name is wrong.
        IdentityMismatchError: The suite's name is taken by other settings.
        DeerstalkerError: A checkpoint could not be evaluated; raised after all others are done.
    """
    store = Store.open(request.store)
    suite = request.suite if request.puzzles is not None else suite_key(request.suite)
    runs = list(dict.fromkeys(request.runs))
    records = {run: read_run(store, run) for run in runs}
    chosen = [item for record in records.values() for item in requested_checkpoints(record, request)]
    trained = {run: record.typed_recipe().longest_sampling for run, record in records.items()}
    profile = fitting_profile(request.profile, request.profile_overrides)
    with open_side_by_side(store, profile, min(request.at_once, max(1, len(chosen)))) as pool:
        first = pool[0]
        puzzles, split, config = measured_puzzles(request.puzzles, request.suite, request.config, first)
        first.live.opened(f"suite {suite}: {len(chosen)} checkpoints on {request.puzzles or puzzles.key}")
        request = request.model_copy(update={"suite": suite})
        configs = {run: evaluated_as_trained(config, sampling) for run, sampling in trained.items()}
        for run, sampling in trained.items():
            for line in cut_below_training(configs[run].sampled, sampling, f"{run}: sampled"):
                first.live.line(line)
        available = [item for item in chosen if not item.pruned or _published(store, suite, item)]
        evaluated = _evaluated(request, configs, available, puzzles, split, store, pool)
        outcomes = dict(zip(available, evaluated, strict=True))
    reports = {item: outcome for item, outcome in outcomes.items() if isinstance(outcome, Ref)}
    failed = [f"{item}: {outcome}" for item, outcome in outcomes.items() if not isinstance(outcome, Ref)]
    pages = dict[str, str]()
    for run in runs:
        try:
            pages[run] = f"{store.url}/{publish_report(store, run)}"
        except (*API_ERRORS, DeerstalkerError) as error:
            failed.append(f"the report of {run}: {error}")
    result = Backfilled(
        suite=suite,
        runs={run: _facts(store, run, reports) for run in runs},
        evaluated=sum(not ref.reused for ref in reports.values()),
        cached=sum(ref.reused for ref in reports.values()),
        skipped=[str(item) for item in chosen if item not in outcomes],
        reports=pages,
    )
    create_table_artifact(_rows(result), key=f"suite-{slug(suite)}", description=f"Suite {suite}")
    if failed:
        summary = f"{len(failed)} of {len(outcomes) + len(runs)} not evaluated or not shown; first {failed[0]}"
        raise DeerstalkerError(f"backfill {suite}", summary, "", "the same command tries them again")
    return result


def requested_checkpoints(record: RunRecord, request: BackfillRequest) -> list[RunCheckpoint]:
    """Returns the requested checkpoints of a run by iteration; 0 is the checkpoint before the first iteration.

    Raises:
        BadInputError: The run has no checkpoint, or the promoted one is being made again.
    """
    run, trained = record.layout.run, dict[int, RunCheckpoint]()
    for item in record.iterations:
        if item.number == 0 and "evaluate" in item.manifests:
            trained[0] = RunCheckpoint(run, 0, Ref(**item.manifests["evaluate"].inputs["weights"]))
        elif manifest := item.manifests.get("finetune"):
            ref = Ref[Checkpoint](manifest.kind, record.layout.iteration(item.number, "checkpoint"), manifest.digest)
            trained[item.number] = RunCheckpoint(run, item.number, ref, pruned=manifest.pruned is not None)
    if request.checkpoints == "best" and (promoted := record.promoted):
        best = trained.get(promoted.iteration)
        if best is None or best.checkpoint != promoted.checkpoint:
            raise BadInputError(
                f"run {run!r}", f"the promoted checkpoint, {run}@{promoted.iteration}, is being made again", "",
                "continue the run",
            )  # fmt: skip
        return [best]
    if not trained or request.checkpoints == "best":
        raise BadInputError(f"run {run!r}", "no checkpoint yet", "at least one", "let it run first")
    every = request.every if request.checkpoints == "every" else 1
    return [item for number, item in trained.items() if number % every == 0 or number == max(trained)]


@contextmanager
def open_side_by_side(store: Store, profile: Profile, width: int) -> Generator[list[Stages]]:
    """Opens up to `width` contexts of stages, whose engines are those of `divided`, and closes them at the end."""
    profiles = [profile.model_copy(update={"engine": engine}) for engine in divided(profile.engine, width)]
    with ExitStack() as stack:
        yield [stack.enter_context(opened_stages(store, each)) for each in profiles]


def divided(engine: EngineHardware, width: int) -> list[EngineHardware]:
    """Returns the engine settings of up to `width` contexts that run in parallel, each with a share of the memory.

    If there are external engines, each context gets some of them, so there are at most as many contexts as engines.
    With `replicas = "auto"` on several GPUs there is one context, whose engines use all of them.
    """
    urls, cache = engine.external_urls, engine.kv_cache_gib
    count = min(width, len(urls)) if urls else 1 if fills_gpus(engine) else width
    changes = {"memory_share": engine.memory_share / count, "kv_cache_gib": cache and cache / count}
    if count > 1 and engine.replicas == "auto" and not urls:
        changes["replicas"] = 1  # the contexts already run in parallel
    return [engine.model_copy(update={**changes, "external_urls": urls[number::count]}) for number in range(count)]


def _report_address(store: Store, suite: str, item: RunCheckpoint) -> ArtifactAddress[Report]:
    """Returns where the report of a checkpoint is, which is made again if the checkpoint was.

    A request to redo `evaluate` means the run's own evaluations: what a suite measured of a pruned checkpoint could not
    be measured again. While a request is carried out, a checkpoint may be measured that is made again after that.
    """
    layout = RunLayout(item.run)
    refresh = Refreshes.read(store, layout).at(None)
    refresh = refresh and replace(refresh, stages={}, replaced=(evaluate.__name__,))
    return ArtifactAddress(store, layout.suite(suite, item.iteration), Report, refresh)


def _evaluated(
    request: BackfillRequest,
    configs: Mapping[str, EvaluateConfig],
    available: Sequence[RunCheckpoint],
    puzzles: Ref[Puzzles],
    split: str,
    store: Store,
    pool: Sequence[Stages],
) -> Iterator[Ref[Report] | Exception]:
    """Yields the report of each checkpoint, or the error of its evaluation; the stages of `pool` work in parallel."""
    first, free = pool[0], SimpleQueue[StageContext]()
    for stages in pool:
        free.put(stages.ctx)

    def evaluate_one(item: RunCheckpoint) -> Ref[Report]:
        out = _report_address(store, request.suite, item)
        ctx = free.get()
        try:
            report = evaluate(ctx, configs[item.run], item.checkpoint, puzzles, split=split, out=out)
            ctx.remove_old_copies()
            return report
        finally:
            free.put(ctx)
            if len(pool) == 1:
                first.permit.stage_ended()

    def abandon() -> None:
        first.permit.close()  # all of them share it
        for stages in pool:
            stages.ctx.abandon()

    evaluate_one.__name__, evaluate_one.__doc__ = evaluate.__name__, evaluate.__doc__
    results = map_some_at_once(
        evaluate_one,
        available,
        run_name=f"evaluate-{request.suite}-{{item}}",
        ctx=first.ctx,
        at_once=len(pool),
        abandon=abandon,
    )
    for number, (item, result) in enumerate(zip(available, results, strict=True), 1):
        outcome = ("cached" if result.reused else "evaluated") if isinstance(result, Ref) else f"failed: {result}"
        first.live.line(f"{number} of {len(available)}: {item} {outcome}")
        yield result


def _published(store: Store, suite: str, item: RunCheckpoint) -> bool:
    return is_published(store, RunLayout(item.run).suite(suite, item.iteration))


def _facts(store: Store, run: str, reports: dict[RunCheckpoint, Ref[Report]]) -> dict[int, dict[str, Any]]:
    own = {item.iteration: Artifact.open(store, ref) for item, ref in reports.items() if item.run == run}
    return {
        number: {
            "report": f"{store.url}/{report.key}",
            **report.manifest.facts,
            **stored_figures(report).as_json(),
        }
        for number, report in sorted(own.items())
    }


def _rows(result: Backfilled) -> list[dict[str, Any]]:
    return [
        {
            "run": run,
            "iteration": number,
            **{
                f"{mode} {bound}": round(facts[mode]["accuracy"][bound], 4) if mode in facts else None
                for mode in ("sampled", "greedy")
                for bound in ("mean", "low", "high")
            },
        }
        for run, reports in result.runs.items()
        for number, facts in reports.items()
    ]
