"""One run in progress: its recipe, its addresses, and how its stages are called."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from artifacts.errors import IdentityMismatchError
from artifacts.identity import continued, differences, with_added
from artifacts.layout import RunLayout
from artifacts.refs import K
from artifacts.renewal import Renewals
from artifacts.slot import Slot
from artifacts.store import MissingKeyError, Store
from artifacts.stored_json import read_recipe
from artifacts.sums import sums_of
from flows.gpu_turn import GpuTurn
from flows.live import LiveView
from flows.recipes import Recipe
from flows.tasks import map_as_tasks, run_as_task
from flows.trackers import NO_TRACKER, Tracker
from flows.ui import ShownRun
from stages.context import StageContext


class Reusable(Protocol):
    """What stages return: something found in the store or made anew."""

    @property
    def reused(self) -> bool: ...


R = TypeVar("R", bound=Reusable)


class Stages:
    """How stages are called inside a flow.

    Attributes:
        ctx: What they are handed.
        live: What a person watches.
        turn: The hold on a GPU, where the profile names a limit.
    """

    def __init__(self, ctx: StageContext, live: LiveView, turn: GpuTurn) -> None:
        self.ctx, self.live, self.turn = ctx, live, turn

    def slot(self, key: str, kind: type[K]) -> Slot[K]:
        """An address of the store."""
        return Slot(self.ctx.store, key, kind)

    def run(self, stage: Callable[..., R], *inputs: Any, label: str = "", **keywords: Any) -> R:
        """Runs a stage as a Prefect task: retried after transient failures, `Cached` where already published.

        Args:
            stage: A verb of `stages`.
            *inputs: Its config and refs; Prefect shows them as the task's parameters.
            label: Added to the task run's name.
            **keywords: Its slots and numbers.
        """
        name = f"{stage.__name__}-{label}" if label else stage.__name__
        self.live.stage_started(name)
        started = time.perf_counter()
        try:
            result = run_as_task(stage, *inputs, run_name=name, ctx=self.ctx, **keywords)
        finally:
            self.turn.stage_ended()
        self.live.stage_finished(name, time.perf_counter() - started, result.reused)
        return result

    def map(
        self, stage: Callable[..., R], inputs: Sequence[Any], *, label: str, out: Callable[[Any], Slot[Any]]
    ) -> list[R]:
        """Runs a stage on each input as mapped Prefect tasks, side by side; the order is that of the inputs.

        Args:
            label: Name of each task run behind the stage's; `{item}` stands for the input.
            out: The slot of an input.
        """
        name = stage.__name__
        self.live.stage_started(name)
        started = time.perf_counter()
        results: list[R] = []
        for result in map_as_tasks(stage, inputs, run_name=f"{name}-{label}", ctx=self.ctx, out=out):
            results.append(result)
            self.live.progress(name, len(results), len(inputs), {})
        self.live.stage_finished(name, time.perf_counter() - started, all(result.reused for result in results))
        return results


class LastStageDone(Exception):  # noqa: N818 (no error)
    """The stage behind which this part of a run ends is done; nothing failed."""


class Session(Stages):
    """A run in progress.

    Attributes:
        recipe: What it learns, resolved and frozen in the store.
        layout: Where its artifacts stand.
        refresh: What is to be made anew.
        shown: What Prefect's interface and the tracker are shown of it.
        stop_after: `stage@iteration` behind which `LastStageDone` is raised; None goes to the end.
        before_writing: Called before anything is stored of the run's own artifacts (see `freeze_recipe`).
        reached: The last iteration that has published all its artifacts.
    """

    def __init__(
        self,
        recipe: Recipe,
        layout: RunLayout,
        stages: Stages,
        refresh: Renewals,
        tracker: Tracker = NO_TRACKER,
    ) -> None:
        super().__init__(stages.ctx, stages.live, stages.turn)
        self.recipe, self.layout, self.refresh = recipe, layout, refresh
        self.stop_after: str | None = None
        self.before_writing: Callable[[], None] = lambda: None
        self.reached = -1
        self.shown = ShownRun(layout, self.ctx.store, tracker, self.ctx.log, self.ctx.profile.store_link)

    def run(self, stage: Callable[..., R], *inputs: Any, label: str = "", **keywords: Any) -> R:
        """See `Stages.run`."""
        result = super().run(stage, *inputs, label=label, **keywords)
        if label.isdigit() and self.stop_after == f"{stage.__name__}@{int(label)}":
            raise LastStageDone
        return result

    def iteration_finished(self, n: int) -> None:
        """Iteration `n` has published all its artifacts: shows it wherever somebody may look."""
        self.reached = n
        anew = self.live.executed
        self.live.iteration_finished(n)
        self.shown.iteration_finished(n, anew=anew)

    def slot(self, key: str, kind: type[K]) -> Slot[K]:
        """An address of the store; what runs share is never made anew."""
        if not key.startswith(f"{self.layout.root}/"):
            return super().slot(key, kind)
        return Slot(self.ctx.store, key, kind, self.refresh.at(None), self.before_writing)

    def at(self, number: int, part: str, kind: type[K]) -> Slot[K]:
        """The address of a part of iteration `number`."""
        key = self.layout.iteration(number, part)
        return Slot(self.ctx.store, key, kind, self.refresh.at(number), self.before_writing)


def freeze_recipe(store: Store, layout: RunLayout, recipe: Recipe) -> None:
    """Stores the resolved recipe under the run's name, once and for all.

    That is the first thing stored of a run, and it comes when something else is about to be: an attempt that fails
    before that leaves the name free, and of two that begin with different recipes the one that stores first keeps it.

    Raises:
        IdentityMismatchError: The name is taken by a run of another recipe.
    """
    text = (json.dumps(recipe.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n").encode()
    if store.create_bytes(layout.recipe, text):
        store.create_bytes(layout.sums, sums_of({layout.recipe.rpartition("/")[2]: text}))
    else:
        check_recipe(store, layout, recipe)


def going_on(store: Store, layout: RunLayout, recipe: Recipe) -> Recipe:
    """Returns the recipe by which a run goes on that an earlier version may have begun (see `continued`).

    Raises:
        IntegrityError: What is frozen under the run's name is no recipe.
    """
    frozen = _frozen(store, layout)
    return recipe if frozen is None else continued(recipe, frozen)


def _frozen(store: Store, layout: RunLayout) -> dict[str, Any] | None:
    try:
        return read_recipe(store, layout)
    except MissingKeyError:
        return None


def check_recipe(store: Store, layout: RunLayout, recipe: Recipe) -> None:
    """Refuses a recipe where another one is frozen under the run's name.

    Raises:
        IdentityMismatchError: The name is taken by a run of another recipe.
    """
    frozen = _frozen(store, layout)
    if frozen is None:
        return
    if changes := differences(with_added(Recipe, frozen), recipe.model_dump(mode="json")):
        raise IdentityMismatchError(
            f"run {layout.run!r}",
            "made with another recipe: " + "; ".join(changes[:6]),
            "the recipe it began with",
            "choose another --run name, or drop the changed settings",
        )
