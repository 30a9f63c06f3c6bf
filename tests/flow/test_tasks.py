"""Stages as Prefect tasks: what Prefect shows is what the store holds, and only transient failures are retried."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId
from prefect.client.schemas.objects import TaskRun
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOCAL_STORAGE_PATH,
    PREFECT_LOGGING_TO_API_ENABLED,
)
from prefect.states import AwaitingRetry, Running

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, TransientError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refresh import Refreshes
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.iteration import begin
from flows.orchestration.flow_runs import RunLogger, this_flow_run
from flows.orchestration.gpu_lease import GpuLease
from flows.orchestration.gpu_permit import GpuPermit, gpu_permit
from flows.orchestration.server.dead_runs import crash_dead_runs, crash_dead_tasks
from flows.orchestration.tasks import as_task
from flows.report.shown_run import ShownRun
from flows.report.terminal.live import current_view
from flows.session.calls import Stages
from flows.session.saving import LastStageDone
from flows.session.session import SHOWN_AGAIN, Session
from stages.context import Profile, StageContext
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.prepare import PrepareConfig, prepare
from stages.sampling.config import EngineHardware
from tests.support.installed import TINY
from tests.support.prefect_server import reporting_to

SMALL = PrepareConfig(train=4, val=2, test=2)
SMALLEST = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32)


@pytest.fixture(scope="module")
def _prefect(prefect_api_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    changes = {
        PREFECT_API_DATABASE_CONNECTION_URL: "sqlite+aiosqlite:////elsewhere/prefect.db",
        PREFECT_LOCAL_STORAGE_PATH: tmp_path_factory.mktemp("results"),
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        PREFECT_LOGGING_TO_API_ENABLED: False,
    }
    with reporting_to(prefect_api_url, changes):
        yield


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    (tmp_path / "scratch").mkdir()
    store = Store.open(str(tmp_path / "store"))
    profile = Profile(workers=1, retries=2, retry_delay_s=0.0)
    return StageContext(store, tmp_path / "scratch", profile, lambda *_: None, logging.getLogger("test"))


def session(
    ctx: StageContext, permit: GpuPermit, layout: RunLayout, recipe: Recipe | None = None,
    *, published: int = -1, stop_after: str | None = None,
) -> Session:  # fmt: skip
    """A run in progress, by default of `answers_only`, which no tracker follows."""
    return Session(
        ctx, current_view(), permit, recipe=recipe or load_recipe("answers_only"), layout=layout, refresh=Refreshes(),
        shown=ShownRun(layout, ctx.store, None, ctx.log), published=published, stop_after=stop_after,
    )  # fmt: skip


def task_runs_of(run_id: str, count: int) -> list[TaskRun]:
    """A flow run's tasks that have ended; Prefect records them a little later."""
    chosen = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[UUID(run_id)]))
    deadline = time.monotonic() + 300
    with get_client(sync_client=True) as client:
        while True:
            runs = client.read_task_runs(task_run_filter=chosen)
            ended = [run for run in runs if run.state and run.state.is_final()]
            if len(ended) == count or time.monotonic() > deadline:
                return ended
            time.sleep(0.1)


def states_of(run_id: str, count: int) -> dict[str, str]:
    """State names of a flow run's tasks, by the task run's name."""
    return {run.name: str(run.state.name) for run in task_runs_of(run_id, count) if run.state}


@pytest.mark.usefixtures("_prefect")
def test_a_warning_of_a_stage_is_a_line_of_the_terminal_too() -> None:
    lines: list[str] = []

    @flow(persist_result=False)
    def warns() -> None:
        log = RunLogger(lines.append)
        log.info("nothing to see")
        log.warning("%d of %d steps were skipped", 1, 4)
        log.warning("100% of the disk")
        log.log(logging.WARNING, "%s", "last")

    warns()
    assert lines == ["warning: 1 of 4 steps were skipped", "warning: 100% of the disk", "warning: last"]


@pytest.mark.usefixtures("_prefect")
def test_a_stage_found_in_the_store_is_shown_as_cached(ctx: StageContext) -> None:
    address = ArtifactAddress(ctx.store, "puzzles/set", Puzzles)

    @flow
    def twice() -> tuple[str, Ref[Puzzles], Ref[Puzzles]]:
        first = as_task("prepare-first", ctx, prepare, {"out": address})(SMALL, return_state=True).result()
        second = as_task("prepare-second", ctx, prepare, {"out": address})(SMALL, return_state=True).result()
        return str(flow_run.id), first, second

    run_id, first, second = twice()
    assert states_of(run_id, 2) == {"prepare-first": "Completed", "prepare-second": "Cached"}
    assert first == second
    splits = [
        Artifact.open(ctx.store, first).read_table(f"{name}.parquet", PUZZLES) for name in ("train", "val", "test")
    ]
    assert [len(split) for split in splits] == [4, 2, 2]
    assert len({digest for split in splits for digest in split["digest"]}) == 8


@pytest.mark.usefixtures("_prefect")
@pytest.mark.parametrize(("error", "attempts"), [(TransientError, 3), (BadInputError, 1)])
def test_only_transient_failures_are_retried(ctx: StageContext, error: type[Exception], attempts: int) -> None:
    calls: list[int] = []

    def failing(ctx: StageContext, config: PrepareConfig) -> Ref[Puzzles]:
        """Fails every time."""
        calls.append(config.train)
        raise error("somewhere", "trouble")

    @flow
    def once() -> None:
        as_task("failing", ctx, failing, {})(SMALL, return_state=True).result()

    with pytest.raises(error, match="somewhere: trouble"):
        once()
    assert len(calls) == attempts


@pytest.mark.long
@pytest.mark.timeout(1800, method="thread")  # its alarm would make Prefect use another means than in a run
@pytest.mark.usefixtures("_prefect")
def test_waiting_for_a_gpu_does_not_count_against_the_time_limit(
    ctx: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may hold the slot for days; a stage that hangs once it has the slot is still ended."""
    limit_s, taken = 5.0, 0
    address = ArtifactAddress(ctx.store, "puzzles/waiting", Puzzles)
    prepare(ctx, SMALL, out=address)

    def slow_take(self: GpuLease, *, waits: bool) -> bool:
        nonlocal taken
        taken += 1
        time.sleep(1.5 * limit_s if taken == 1 else 0.0)
        return waits

    monkeypatch.setattr(GpuLease, "take", slow_take)

    def working(ctx: StageContext, config: PrepareConfig, seconds: float) -> None:
        """Works for a while once it may use the GPU."""
        assert ctx.engine is not None
        time.sleep(seconds)

    @flow
    def run() -> None:
        log = logging.getLogger("test")
        profile = Profile(stage_timeout_s=limit_s, retry_delay_s=0.0)
        with (
            gpu_permit("gpu", "stage", log) as permit,
            StageContext(ctx.store, tmp_path, profile, lambda *_: None, log, use_gpu=permit.take) as waiting,
        ):
            as_task("found", waiting, prepare, {"out": address})(SMALL, return_state=True).result()
            assert taken == 0  # what is published asks for no slot
            as_task("in time", waiting, working, {})(SMALL, limit_s / 4, return_state=True).result()
            permit.stage_ended()
            with pytest.raises(TimeoutError):
                as_task("hanging", waiting, working, {})(SMALL, 10 * limit_s, return_state=True).result()

    run()
    assert taken == 2


@pytest.mark.usefixtures("_prefect")
def test_the_same_code_runs_without_prefect(ctx: StageContext) -> None:
    plain = prepare(ctx, SMALL, out=ArtifactAddress(ctx.store, "plain", Puzzles))

    @flow
    def decorated() -> Ref[Puzzles]:
        address = ArtifactAddress(ctx.store, "decorated", Puzzles)
        return as_task("prepare", ctx, prepare, {"out": address})(SMALL, return_state=True).result()

    assert decorated().digest == plain.digest


@pytest.mark.usefixtures("_prefect")
def test_a_part_of_a_run_ends_after_the_named_stage_of_the_named_iteration(ctx: StageContext) -> None:
    layout, finished = RunLayout("cut"), list[int]()

    @flow
    def cut() -> None:
        with gpu_permit(None, "run", ctx.log) as permit:
            run = session(ctx, permit, layout, stop_after="prepare@12")
            for number in (2, 12, 13):
                run.run(prepare, SMALL, out=run.at(number, "rollouts", Puzzles))
                finished.append(number)

    with pytest.raises(LastStageDone):
        cut()
    assert finished == [2]
    assert Artifact.at(ctx.store, layout.iteration(12, "rollouts"), Puzzles)  # published before the end
    assert not ctx.store.list(layout.iteration(13, "rollouts"))


@pytest.mark.usefixtures("_prefect")
def test_old_iterations_of_a_run_that_goes_on_are_looked_up_without_task_runs(ctx: StageContext) -> None:
    layout, newest = RunLayout("long"), SHOWN_AGAIN + 5
    missing = 3

    @flow
    def long(numbers: list[int], published: int) -> str:
        with gpu_permit(None, "run", ctx.log) as permit:
            run = session(ctx, permit, layout, published=published)
            for number in numbers:
                run.run(prepare, SMALL, out=run.at(number, "rollouts", Puzzles))
        return str(flow_run.id)

    every = list(range(1, newest + 1))
    made = [number for number in every if number != missing]
    assert len(states_of(long(made, -1), len(made))) == len(made)
    expected = {f"prepare-{number:04d}": "Cached" for number in range(newest - SHOWN_AGAIN + 1, newest + 1)}
    expected[f"prepare-{missing:04d}"] = "Completed"
    assert states_of(long(every, newest), len(expected)) == expected
    assert Artifact.at(ctx.store, layout.iteration(missing, "rollouts"), Puzzles)


@pytest.mark.usefixtures("_prefect")
@pytest.mark.parametrize("fails", [False, True])
def test_a_stage_runs_beside_others_and_ends_with_them(ctx: StageContext, fails: bool) -> None:
    """If the block fails, a stage that waits for an engine is not awaited: the engines are retired, and it fails."""
    reported, meanwhile, entered = list[str](), threading.Event(), threading.Event()
    ctx.progress = lambda label, done, total, figures: reported.append(label)

    def waiting(ctx: StageContext, config: PrepareConfig, *, out: ArtifactAddress[Puzzles]) -> Ref[Puzzles]:
        """Prepares puzzles once the block is past its stage."""
        entered.set()
        while not meanwhile.wait(0.01):
            with suppress(BadInputError):  # there are no weights to start with
                ctx.engine.prestart(Path("no weights"), "")
        ctx.progress("waiting", 1, 1, {})
        return prepare(ctx, config, out=out)

    @flow
    def beside() -> str:
        with gpu_permit(None, "run", ctx.log) as permit:
            stages = Stages(ctx, current_view(), permit)
            with stages.alongside(waiting, SMALL, out=stages.address("puzzles/beside", Puzzles, "0002")):
                assert entered.wait(300.0)
                stages.run(prepare, SMALL, out=stages.address("puzzles/first", Puzzles, "0001"))
                if fails:
                    raise BadInputError("the block", "trouble")
                meanwhile.set()
        return str(flow_run.id)

    if fails:
        with pytest.raises(BadInputError, match="the block: trouble"):
            beside()
        assert not ctx.store.list("puzzles/beside")
    else:
        assert states_of(beside(), 2) == {"prepare-0001": "Completed", "waiting-0002": "Completed"}
        assert ctx.store.list("puzzles/beside")
        assert "waiting" in reported


@pytest.mark.usefixtures("_prefect")
@pytest.mark.parametrize("gpu_slot", [None, "gpu"])
def test_a_model_is_fetched_while_puzzles_are_drawn(ctx: StageContext, tmp_path: Path, gpu_slot: str | None) -> None:
    """Not if the run would hold a permit for a GPU meanwhile."""
    (tmp_path / "model").mkdir()
    make_scratch(SMALLEST, ["a few words"], tmp_path / "model")
    ctx.profile = ctx.profile.model_copy(update={"engine": EngineHardware(takes_turns=True), "gpu_slot": gpu_slot})
    layout, ids = RunLayout("early"), list[str]()
    model = f"model={{source='folder', path='{tmp_path}/model'}}"
    recipe = load_recipe(str(TINY), [model, "iterations=0", "warm_start=null"])

    @flow
    def first() -> None:
        ids.append(str(flow_run.id))
        with gpu_permit(None, "run", ctx.log) as permit:
            run = session(ctx, permit, layout, recipe)
            run.last_task_run = "prepare"
            begin(run)

    with pytest.raises(LastStageDone):
        first()
    if gpu_slot is not None:
        assert not ctx.store.list("models")
        return
    runs = task_runs_of(ids[0], len(recipe.puzzles.first_stretches()) + 2)
    begun = {run.name.partition("-")[0]: run.start_time for run in runs}
    drawn = max(run.end_time for run in runs if run.name.startswith("draw-") and run.end_time)
    assert begun["fetch"] is not None and begun["fetch"] < drawn
    assert ctx.store.list("models")


@pytest.mark.usefixtures("_prefect")
def test_only_runs_of_the_worker_that_is_gone_are_crashed() -> None:
    """The server's database is not the one in Prefect's home: others may run flows that no worker started."""

    @flow(name="waiting")
    def waiting() -> None: ...

    workers = {"gone": "ours", "gone before": "older", "living here": "ours", "elsewhere": "theirs", "a command": None}
    with get_client(sync_client=True) as client:
        runs = {name: client.create_flow_run(waiting, name=name, state=Running()) for name in workers}
        for name, worker in workers.items():
            if worker:
                client.update_flow_run_labels(runs[name].id, {"prefect.worker.name": worker})
        here = {**os.environ, "PREFECT__FLOW_RUN_ID": str(runs["living here"].id)}
        command = [sys.executable, "-c", "print(flush=True); input()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=here) as process:
            assert process.stdout is not None and process.stdout.readline()  # it has its environment
            for _ in range(2):
                crash_dead_runs("gone", before=datetime.now(UTC), workers={"ours", "older"}, unclaimed=True)
        states = {name: client.read_flow_run(run.id).state_name for name, run in runs.items()}
    crashed = {name for name, state in states.items() if state == "Crashed"}
    assert crashed == {"gone", "gone before"}
    assert {state for name, state in states.items() if name not in crashed} == {"Running"}


@task(name="left")
def left() -> None: ...


@pytest.mark.usefixtures("_prefect")
def test_stages_of_a_run_that_is_gone_are_crashed_with_it() -> None:
    @flow(name="killed")
    def killed() -> None: ...

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(killed, state=Running())
        client.create_task_run(left, run.id, "0", name="left", state=Running())
        client.update_flow_run_labels(run.id, {"prefect.worker.name": "gone"})
        crash_dead_runs("gone", before=datetime.now(UTC), workers={"gone"}, unclaimed=False)
    assert states_of(str(run.id), 1) == {"left": "Crashed"}


@pytest.mark.usefixtures("_prefect")
def test_a_stage_that_a_killed_attempt_left_running_is_crashed_by_the_next(ctx: StageContext) -> None:
    def looking(ctx: StageContext, config: PrepareConfig) -> None:
        """Looks while it is open itself; that stays."""
        crash_dead_tasks(this_flow_run())

    @flow(name="again")
    def again() -> None:
        crash_dead_tasks(this_flow_run())
        as_task("looking", ctx, looking, {})(SMALL, return_state=True).result()

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(again)
        client.set_flow_run_state(run.id, Running(), force=True)
        client.create_task_run(left, run.id, "0", name="left", state=Running())
        client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
        run_flow(again, flow_run=client.read_flow_run(run.id))
        assert client.read_flow_run(run.id).run_count == 2
    assert states_of(str(run.id), 2) == {"left": "Crashed", "looking": "Completed"}
