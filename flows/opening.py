"""Opens runs: checks the request, opens the store, attaches the views, and ends the child processes at the end."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any, TypeVar

from pydantic import Field

from artifacts.config import Config
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.refresh import Refreshes, record_done, record_request
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.checks.advice import advice
from flows.checks.devices import refuse_on_this_machine
from flows.checks.fitting import refuse_head_size, refuse_undivided, refuse_unfit
from flows.checks.judge import check_judge
from flows.checks.named import check_named
from flows.checks.overlap import Role, check_overlap
from flows.checks.soundness import check_sound
from flows.config.compute_types import compute_types
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe
from flows.inputs.models import hidden_size_of
from flows.lookup.checkpoints import with_fixed_names
from flows.lookup.history import last_iteration
from flows.lookup.stages import MEASURING, REFRESHABLE, STOPPABLE
from flows.orchestration.flow_runs import RunLogger, this_flow_run
from flows.orchestration.gpu_permit import GpuPermit, gpu_permit
from flows.orchestration.server.dead_runs import crash_dead_tasks
from flows.orchestration.shared_devices import say_who_computes_here
from flows.plan.rows import with_rows
from flows.plan.workload import SHORTEST
from flows.report.shown_run import ShownRun
from flows.report.terminal.live import current_view
from flows.report.trackers import open_tracker
from flows.session.calls import Stages
from flows.session.frozen import check_recipe, freeze_recipe, frozen_recipe
from flows.session.saving import LastStageDone
from flows.session.session import Session
from flows.session.views import ProgressView
from stages.context import Profile, StageContext
from stages.models.source import ModelConfig
from stages.processes.memory import quick_collections
from stages.processes.scratch import Scratch

REFRESH = (
    f"Stages to run again although they are published: {', '.join(REFRESHABLE)}; in every iteration, or in one, as "
    "`evaluate@3`. Later stages run again if their inputs change."
)
StageName = Annotated[str, Field(pattern=rf"^({'|'.join(REFRESHABLE)}|({'|'.join(STOPPABLE)})@[0-9]{{1,7}})$")]
StoreAddress = Annotated[
    str, Field(description="Where artifacts are stored: a folder, file://, or s3://bucket/prefix.")
]
ProfileName = Annotated[str, Field(description="Name of a profile, or path of a TOML file.")]
ProfileOverrides = Annotated[list[str], Field(description="Changes of the profile, `section.key=value` each.")]
STOP_AFTER = "Stage of an iteration, as `sample@1`, after which the run stops; another machine can continue it."


class RunRequest(Config):
    """Parameters of the `train` flow."""

    run: str = Field(
        default="quickstart", description="Name of the run; the same name with the same recipe continues it."
    )
    recipe: str = Field(default="quickstart", description="Name of a recipe, or path of a TOML file.")
    profile: ProfileName = "cpu"
    store: StoreAddress = DEFAULT_STORE
    overrides: list[str] = Field(default=[], description="Changes of the recipe, `section.key=value` each.")
    profile_overrides: ProfileOverrides = Field(default=[])
    refresh: list[StageName] = Field(default=[], description=REFRESH)
    stop_after: str | None = Field(
        default=None, pattern=rf"^({'|'.join(STOPPABLE)})@[0-9]{{1,7}}$", description=STOP_AFTER
    )
    role: Role = Field(
        default="both",
        description="Part of a run with `iterate_ahead` that this flow run does: `sampler` samples, `trainer` does all "
        "else and waits for the sampler, `both` does both at the same time.",
    )


def fitting_profile(name: str, overrides: Sequence[str] = (), *, trains: bool = False, samples: bool = True) -> Profile:
    """Loads a profile for the machine that executes this flow.

    Args:
        name: Name of the profile, or path of a TOML file.
        overrides: Changes of it, `section.key=value` each.
        trains: Whether the flow trains on this machine.
        samples: Whether the flow samples from an engine.

    Raises:
        BadInputError: There is no such profile, or this machine lacks its GPUs, their driver, the builds for them, or
            free memory for the KV cache.
    """
    profile = load_profile(name, overrides)
    waits = profile.gpu_slot is not None
    refuse_on_this_machine(profile.engine, profile.trainer, trains=trains, samples=samples, waits=waits)
    return profile


@contextmanager
def opened(request: RunRequest) -> Generator[Session]:
    """Opens a run, and ends its child processes at the end of the block, even after an error.

    The block ends early after the stage that `stop_after` names.

    Raises:
        BadInputError: The recipe, the profile, the run name or the store is invalid, or memory is too small.
        IdentityMismatchError: The run name is taken by a run of another recipe.
    """
    recipe = load_recipe(request.recipe, request.overrides)
    samples_only = request.role == "sampler"  # the trainer's flow run freezes the recipe, and logs the metrics
    profile = fitting_profile(request.profile, request.profile_overrides, trains=not samples_only)
    if samples_only:
        profile = profile.model_copy(update={"tracker": "none"})
    layout = RunLayout(request.run)
    store = Store.open(request.store)
    frozen = frozen_recipe(store, layout)
    written = as_begun(recipe, frozen, store)
    refuse_undivided(written, profile.trainer, profile.engine)
    if frozen is None:
        check_sound(written)
        refuse_head_size(written, profile.engine)
        check_named(written, store)
        check_judge(written)
        if not samples_only:
            refuse_unfit(with_rows(written, profile, lengths=SHORTEST), profile)
    check_recipe(store, layout, written)

    @cache
    def before_writing() -> None:
        (check_recipe if samples_only else freeze_recipe)(store, layout, session.recipe)

    refresh = request.refresh if frozen else []  # a run that has not begun has nothing to refresh
    with opened_run(
        store, layout, written, profile, refresh, role=request.role, stop_after=request.stop_after,
        before_writing=before_writing,
    ) as session:  # fmt: skip
        yield session


def as_begun(recipe: Recipe, frozen: Mapping[str, Any] | None, store: Store) -> Recipe:
    """Returns the recipe with what the run begins or began with: checkpoints for names that may change, sizes of rows.

    Args:
        recipe: The recipe as it was written.
        frozen: The frozen recipe of the run as JSON; None if the run has not begun.
        store: The store of the checkpoints.
    """

    def fixed(source: ModelConfig, begun: Mapping[str, Any] | None) -> ModelConfig:
        return with_fixed_names(source, store, None if frozen is None else begun or {})

    changes: dict[str, Any] = {"model": fixed(recipe.model, (frozen or {}).get("model"))}
    if recipe.rate is not None:
        rated = ((frozen or {}).get("rate") or {}).get("models", ())
        begun = {model["name"]: model["source"] for model in rated}
        models = tuple(
            model.model_copy(update={"source": model.source and fixed(model.source, begun.get(model.name))})
            for model in recipe.rate.models
        )
        changes["rate"] = recipe.rate.model_copy(update={"models": models})
    recipe = recipe.model_copy(update=changes)
    return recipe if frozen is None else recipe.with_rows_of(frozen)


@contextmanager
def opened_run(
    store: Store,
    layout: RunLayout,
    recipe: Recipe,
    profile: Profile,
    refresh: Sequence[str],
    *,
    role: Role = "both",
    stop_after: str | None = None,
    last: int | None = None,
    before_writing: Callable[[], None] = lambda: None,
) -> Generator[Session]:
    """Opens a run with a given recipe, and ends its child processes at the end (see `opened`).

    Args:
        refresh: Stages to run again, besides those of earlier requests that are not finished.
        role: The part of the run that this flow run does.
        stop_after: `stage@iteration` after which `LastStageDone` is raised; None runs to the end.
        last: The last iteration that the flow runs; None for that of the recipe.
        before_writing: Called before any of the run's own artifacts is stored.

    Raises:
        BadInputError: The run has no such stage, a stage cannot be made again, or what happens at the same time does
            not fit.
    """
    last = recipe.iterations if last is None else last
    _refuse_absent(recipe, last, refresh, stop_after)
    engine = profile.engine.with_graphs_for(recipe.most_in_flight).with_adapter(recipe.published_adapter)
    profile = profile.model_copy(update={"engine": engine})
    type_lines = compute_types(profile, hidden_size_of(recipe.model, store))
    if "sft" in refresh and recipe.warm_start is not None and recipe.distil is None:
        raise BadInputError(
            "refresh", "sft, but this run's only training on texts is a warm start, which runs share", "another stage",
            "change warm_start.seed in a new run",
        )  # fmt: skip
    check_overlap(recipe, profile, role, refreshes=bool(refresh) or Refreshes.read(store, layout).unfinished)
    refreshes = record_request(store, layout, refresh, requested_at(), REFRESHABLE, last=last)

    def make_session(ctx: StageContext, live: ProgressView, permit: GpuPermit) -> Session:
        return Session(
            ctx,
            live,
            permit,
            recipe=recipe,
            layout=layout,
            refresh=refreshes,
            shown=ShownRun(layout, store, tracker, ctx.log, profile.store_link),
            stop_after=stop_after,
            before_writing=before_writing,
            published=min(last_iteration(store, layout), last),
        )

    with (
        open_tracker(profile, store, layout.run, recipe.model_dump(mode="json"), len(refreshes.requests)) as tracker,
        opened_stages(store, profile, make_session) as session,
    ):
        session.live.run_opened(store, layout, recipe)
        for line in (*type_lines, *advice(recipe, last)):
            session.live.line(line)
        with quick_collections():
            yield session
        if refreshes.unfinished and session.reached >= last_iteration(store, layout):
            record_done(store, layout, refreshes)


def _refuse_absent(recipe: Recipe, last: int, refresh: Sequence[str], stop_after: str | None) -> None:
    """Refuses a name of a stage that the run does not have, and an end that it does not reach."""
    sections = {
        "sft": recipe.distil or recipe.warm_start,
        "distil": recipe.distil,
        "pretrain": recipe.value and recipe.value.pretrain,
        "rate": recipe.rate,
        "teach": recipe.teach,
        "value": recipe.value,
    }
    asked = [("refresh", name) for name in refresh] + ([("stop_after", stop_after)] if stop_after else [])
    for option, name in asked:
        if not sections.get(name.partition("@")[0], True):
            raise BadInputError(option, repr(name), "a stage of this run", "its recipe has no section for this stage")
    if stop_after is None:
        return
    stage, _, number = stop_after.partition("@")
    if int(number) > last:
        raise BadInputError("stop_after", repr(stop_after), f"an iteration up to {last}, the last one", "name another")
    if int(number) == 0 and stage not in MEASURING:
        expected = f"{' or '.join(MEASURING)}, the only stages before iteration 1"
        raise BadInputError("stop_after", repr(stop_after), expected, "name another iteration")


def requested_at() -> datetime:
    """Returns the time at which the current flow run was created; a retry has the same time."""
    created = this_flow_run().created
    assert created is not None
    return created


S = TypeVar("S", bound=Stages)


@contextmanager
def opened_stages(
    store: Store, profile: Profile, make: Callable[[StageContext, ProgressView, GpuPermit], S] = Stages
) -> Generator[S]:
    """Yields the object that calls a flow's stages; ends the child processes at the end, even after an error.

    Task runs that a killed attempt of this flow run left open are set to `Crashed` first.
    """
    flow_run = this_flow_run()
    crash_dead_tasks(flow_run)
    live = current_view()
    log = RunLogger(live.line)
    scratch = Scratch()

    @cache
    def say_once() -> None:
        say_who_computes_here(scratch.path, flow_run.name, store, profile, live.line)

    def use_gpu(permit: GpuPermit, *, waits: bool) -> bool:
        if taken := permit.take(waits=waits):
            say_once()
        return taken

    try:
        with (
            gpu_permit(profile.gpu_slot, profile.gpu_slot_spans, log) as permit,
            StageContext(
                store,
                scratch.path,
                profile,
                live.progress,
                log,
                use_gpu=partial(use_gpu, permit, waits=True),
                gpu_free=partial(use_gpu, permit, waits=False),
            ) as ctx,
        ):
            permit.enders.append(ctx.close)
            stages = make(ctx, live, permit)
            with ctx.disks.explaining(), suppress(LastStageDone), stages.states.until_published():
                yield stages
    except DeerstalkerError as error:
        if str(scratch.path) in str(error):  # the error names a log of the engine or the trainer
            scratch.remove_all_but_logs()
        raise
    finally:
        if scratch.lock >= 0:
            scratch.remove()
