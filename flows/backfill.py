"""Evaluating the checkpoints of finished runs on a suite of puzzles that nobody thought of while they ran."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal

from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import BaseModel, ConfigDict, Field

from artifacts.address import ArtifactAddress
from artifacts.config import Config
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refresh import Refreshes
from artifacts.refs import Checkpoint, Puzzles, Ref, Report
from artifacts.store.store import Store
from flows.config.recipes import load_profile
from flows.inputs.puzzle_sets import named_puzzles
from flows.lookup.history import RunRecord, read_run
from flows.opening import opened_stages
from flows.orchestration.artifact_keys import slug
from flows.orchestration.tasks import map_some_at_once
from flows.report.shown_run import publish_report
from flows.session import Stages
from stages.context import Profile, StageContext
from stages.evaluate import EvaluateConfig, evaluate


class BackfillRequest(Config):
    """What a person asks for."""

    runs: list[str] = Field(min_length=1, description="Names of the runs whose checkpoints are evaluated.")
    suite: str = Field(description="Name of the suite; the same name with the same settings goes on.")
    puzzles: str = Field(description="RUN:SPLIT, KEY:SPLIT of a puzzle set, or a JSON file in the published format.")
    checkpoints: Literal["all", "every", "best"] = Field(
        default="all", description="All, every k-th and the last, or only the one that stands promoted."
    )
    every: int = Field(default=10, ge=1, le=1_000_000, description="The k of `every`.")
    config: EvaluateConfig = Field(default_factory=EvaluateConfig, description="Puzzles, samples and how to sample.")
    at_once: int = Field(default=1, ge=1, le=64, description="Evaluations side by side, each with its own engine.")
    store: str = Field(default="./deerstalker-data", description="Where artifacts live.")
    profile: str = Field(default="cpu", description="Name of a profile, or path of a TOML file.")


class Backfilled(BaseModel):
    """What came of it.

    Attributes:
        runs: Facts of the suite's reports by run and iteration.
        evaluated: How many were made now.
        cached: How many were there.
        skipped: `RUN@ITERATION` of checkpoints whose files were pruned before this suite was thought of.
        reports: Address of each run's page, drawn anew.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    runs: dict[str, dict[int, dict[str, Any]]]
    evaluated: int
    cached: int
    skipped: list[str]
    reports: dict[str, str]


@dataclass(frozen=True)
class Candidate:
    """A checkpoint of a run."""

    run: str
    iteration: int
    checkpoint: Ref[Checkpoint]
    pruned: bool = False

    def __str__(self) -> str:
        return f"{self.run}@{self.iteration}"


@flow(name="backfill", flow_run_name="backfill {request.suite}", persist_result=False)
def backfill(request: BackfillRequest) -> Backfilled:
    """Evaluates what lacks a report on the suite, and draws each run's learning curve on it beside its own.

    A report stands under its run, suite and iteration; what is there is not made again, and an interrupted evaluation
    goes on with the puzzles that are missing. Where a checkpoint fails, the others are evaluated all the same.

    Args:
        request: Runs, checkpoints, suite, limit, store and profile.

    Raises:
        BadInputError: A run, the puzzles or the suite's name is at fault.
        IdentityMismatchError: The suite's name is taken by other settings.
        DeerstalkerError: A checkpoint could not be evaluated; raised when all others are done.
    """
    store = Store.open(request.store)
    chosen = [item for run in dict.fromkeys(request.runs) for item in candidates(read_run(store, run), request)]
    profile = load_profile(request.profile)
    with lanes(store, profile, min(request.at_once, max(1, len(chosen)))) as side_by_side:
        puzzles, split = named_puzzles(request.puzzles, side_by_side.first)
        side_by_side.first.live.opened(f"suite {request.suite}: {len(chosen)} checkpoints on {request.puzzles}")
        wanted = [item for item in chosen if not item.pruned or _published(store, request.suite, item)]
        found = dict(zip(wanted, _evaluated(request, wanted, puzzles, split, store, side_by_side), strict=True))
    made = {item: result for item, result in found.items() if isinstance(result, Ref)}
    result = Backfilled(
        suite=request.suite,
        runs={run: _facts(store, run, made) for run in dict.fromkeys(request.runs)},
        evaluated=sum(not ref.reused for ref in made.values()),
        cached=sum(ref.reused for ref in made.values()),
        skipped=[str(item) for item in chosen if item not in found],
        reports={run: f"{store.url}/{publish_report(store, run)}" for run in dict.fromkeys(request.runs)},
    )
    create_table_artifact(_rows(result), key=f"suite-{slug(request.suite)}", description=f"Suite {request.suite}")
    failed = {item: error for item, error in found.items() if not isinstance(error, Ref)}
    for item, error in failed.items():
        found_there = f"{len(failed)} of {len(found)} not evaluated; first {item}: {error}"
        raise DeerstalkerError(f"backfill {request.suite}", found_there, "", "the same command tries them again")
    return result


def candidates(record: RunRecord, request: BackfillRequest) -> list[Candidate]:
    """The checkpoints of a run that are asked for, by iteration; 0 is what its first iteration started from.

    Raises:
        BadInputError: The run has none.
    """
    run, found = record.layout.run, dict[int, Candidate]()
    for item in record.iterations:
        if item.number == 0 and "evaluate" in item.manifests:
            found[0] = Candidate(run, 0, Ref(**item.manifests["evaluate"].inputs["weights"]))
        elif manifest := item.manifests.get("finetune"):
            ref = Ref[Checkpoint](manifest.kind, record.layout.iteration(item.number, "checkpoint"), manifest.digest)
            found[item.number] = Candidate(run, item.number, ref, pruned=manifest.pruned is not None)
    if request.checkpoints == "best" and record.promoted:
        return [found[record.promoted["iteration"]]]
    if not found or request.checkpoints == "best":
        raise BadInputError(f"run {run!r}", "no checkpoint yet", "one", "let it run first")
    every = request.every if request.checkpoints == "every" else 1
    return [item for number, item in found.items() if number % every == 0 or number == max(found)]


class Lanes:
    """Contexts that work side by side, each with an engine of its own."""

    def __init__(self, contexts: Sequence[Stages]) -> None:
        self.first, self._all = contexts[0], [stages.ctx for stages in contexts]
        self._free: SimpleQueue[StageContext] = SimpleQueue()
        for ctx in self._all:
            self._free.put(ctx)

    @property
    def width(self) -> int:
        """How many there are."""
        return len(self._all)

    @contextmanager
    def one(self) -> Generator[StageContext]:
        """A context that nobody else is using."""
        ctx = self._free.get()
        try:
            yield ctx
        finally:
            self._free.put(ctx)

    def abandon(self) -> None:
        """Makes everything fail that is running in them, or that waits for a GPU."""
        self.first.turn.close()  # they share it
        for ctx in self._all:
            ctx.abandon()


@contextmanager
def lanes(store: Store, profile: Profile, wanted: int) -> Generator[Lanes]:
    """Opens so many lanes, which share the device's memory or the engines that run elsewhere, and closes them."""
    urls = profile.engine.external_urls
    count = min(wanted, len(urls)) if urls else wanted
    with ExitStack() as stack:
        share: dict[str, object] = {"memory_share": profile.engine.memory_share / count}
        if count > 1 and profile.engine.replicas == "auto" and not urls:
            share["replicas"] = 1  # the lanes are side by side already
        engines = [
            profile.engine.model_copy(update={**share, "external_urls": urls[number::count]}) for number in range(count)
        ]
        yield Lanes(
            [
                stack.enter_context(opened_stages(store, profile.model_copy(update={"engine": engine})))
                for engine in engines
            ]
        )


def _evaluated(
    request: BackfillRequest, wanted: Sequence[Candidate], puzzles: Ref[Puzzles], split: str, store: Store, side: Lanes
) -> Iterator[Ref[Report] | Exception]:
    def evaluate_one(item: Candidate) -> Ref[Report]:
        layout = RunLayout(item.run)
        # Where a refresh has changed the checkpoint, the report of the old one gives way.
        out = ArtifactAddress(
            store, layout.suite(request.suite, item.iteration), Report, Refreshes.read(store, layout).at(None)
        )
        with side.one() as ctx:
            return evaluate(ctx, request.config, item.checkpoint, puzzles, split=split, out=out)

    evaluate_one.__name__, evaluate_one.__doc__ = evaluate.__name__, evaluate.__doc__
    live = side.first.live
    results = map_some_at_once(
        evaluate_one,
        wanted,
        run_name=f"evaluate-{request.suite}-{{item}}",
        ctx=side.first.ctx,
        at_once=side.width,
        abandon=side.abandon,
    )
    for number, (item, result) in enumerate(zip(wanted, results, strict=True), 1):
        outcome = ("cached" if result.reused else "evaluated") if isinstance(result, Ref) else f"failed: {result}"
        live.line(f"{number} of {len(wanted)}: {item} {outcome}")
        yield result


def _published(store: Store, suite: str, item: Candidate) -> bool:
    return store.exists(f"{RunLayout(item.run).suite(suite, item.iteration)}/manifest.json")


def _facts(store: Store, run: str, made: dict[Candidate, Ref[Report]]) -> dict[int, dict[str, Any]]:
    own = {item.iteration: ref for item, ref in made.items() if item.run == run}
    return {
        number: {"report": f"{store.url}/{ref.key}", **Artifact.open(store, ref).manifest.facts}
        for number, ref in sorted(own.items())
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
