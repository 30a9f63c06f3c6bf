"""A run in progress."""

import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

from artifacts.address import ArtifactAddress
from artifacts.layout import RunLayout
from artifacts.reading import is_published
from artifacts.refresh import Refresh, Refreshes
from artifacts.refs import K
from flows.config.recipe import Recipe
from flows.lookup.history import read_iteration
from flows.orchestration.gpu_permit import GpuPermit
from flows.session.calls import Stages, task_run_name
from flows.session.views import ProgressView, RunPages
from flows.upkeep.removal import OldStates
from stages.context import StageContext

_NEVER = datetime.min.replace(tzinfo=UTC)
"""A time before that of every artifact."""
SHOWN_AGAIN = 10
"""Newest published iterations that a run which goes on shows again, with task runs; older ones are only looked up."""


def _iteration_label(number: int) -> str:
    return f"{number:04d}"


class Session(Stages):
    """A run in progress.

    Attributes:
        recipe: Its recipe, resolved and frozen in the store.
        layout: Keys of its artifacts.
        refresh: Requests to make its artifacts again.
        before_writing: Called before any of the run's own artifacts is stored (see `freeze_recipe`).
        shown: Its stored views.
        reached: The last iteration that has published all its artifacts; -1 if none has.

    Args:
        ctx: The context that every stage gets.
        live: The display of the flow's progress.
        permit: The permit to use a GPU, if the profile names a limit.
        stop_after: `stage@iteration` after which `LastStageDone` is raised; None runs to the end.
        published: The last iteration that has published an artifact; -1 if none has.
    """

    def __init__(
        self,
        ctx: StageContext,
        live: ProgressView,
        permit: GpuPermit,
        *,
        recipe: Recipe,
        layout: RunLayout,
        refresh: Refreshes,
        shown: RunPages,
        stop_after: str | None = None,
        before_writing: Callable[[], None] = lambda: None,
        published: int = -1,
    ) -> None:
        super().__init__(ctx, live, permit)
        self.recipe, self.layout, self.refresh = recipe, layout, refresh
        self.before_writing = before_writing
        self._looked_up, self._shows = published - SHOWN_AGAIN, published <= SHOWN_AGAIN
        if stop_after is not None:
            name, _, number = stop_after.partition("@")
            self.last_task_run = task_run_name(name, _iteration_label(int(number)))
        self.reached = -1
        self.shown = shown
        self._replaced: dict[int, str] = {}
        keep_every = ctx.profile.keep_state_every
        self._old_states = None if keep_every is None else OldStates(ctx.store, layout, keep_every)

    def with_recipe(self, recipe: Recipe) -> Self:
        """Returns the same run in progress with another recipe, such as that of a phase."""
        other = copy(self)
        other.recipe = recipe
        return other

    def replacing(self, number: int, stage: str) -> Self:
        """Returns the same run; a stage of iteration `number` replaces an artifact that was made from other inputs."""
        replacing = copy(self)
        replacing._replaced = {**self._replaced, number: stage}
        return replacing

    def stops_in(self, number: int) -> bool:
        """Returns whether the run stops after a stage of iteration `number`."""
        return self.last_task_run is not None and self.last_task_run.endswith(f"-{_iteration_label(number)}")

    def iteration_finished(self, n: int) -> None:
        """Shows iteration `n`, which has published all its artifacts, in every view; removes old states and copies.

        When a run goes on, those before the newest `SHOWN_AGAIN`, and before the first that is made again, are not
        shown: they cost only their look-up.
        """
        self.reached = n
        self._shows = self._shows or n > self._looked_up or self.live.executed
        if not self._shows:
            if n == self._looked_up:
                self.live.line(f"iterations 0 to {n} are published")
            return
        record = read_iteration(self.ctx.store, self.layout, n)
        if self._old_states is not None:
            self._old_states.iteration_finished(n)
        self.ctx.remove_old_copies()
        executed = self.live.executed
        self.live.iteration_finished(record)
        if warning := self.shown.iteration_finished(record, executed=executed):
            self.live.line(warning)

    def write_report(self) -> str:
        """Shows the finished run in Prefect and the tracker, writes its report, and returns the key of the page."""
        self.states.wait()
        if self._old_states is not None and self.reached > 0:
            self._old_states.iteration_finished(self.reached)
        started = time.perf_counter()
        self.live.stage_started("report")
        page, reused = self.shown.finished()
        self.live.stage_finished("report", time.perf_counter() - started, reused=reused)
        return page

    def address(self, key: str, kind: type[K], label: str = "") -> ArtifactAddress[K]:
        """Returns an address in the store; refreshes apply only to artifacts of this run, not to shared ones."""
        if not key.startswith(f"{self.layout.root}/"):
            return super().address(key, kind, label)
        return ArtifactAddress(self.ctx.store, key, kind, self.refresh.at(None), self.before_writing, label)

    def has(self, number: int, part: str) -> bool:
        """Returns whether a part of iteration `number` is published, perhaps from other inputs."""
        return is_published(self.ctx.store, self.layout.iteration(number, part))

    def at(self, number: int, part: str, kind: type[K]) -> ArtifactAddress[K]:
        """Returns the address of a part of iteration `number`."""
        key = self.layout.iteration(number, part)
        refresh = self.refresh.at(number)
        if refresh:
            refresh = replace(refresh, any_config=True)
        if number in self._replaced:
            refresh = replace(refresh or Refresh({}, _NEVER), replaced=(self._replaced[number],))
        label = _iteration_label(number)
        must_exist = number <= self._looked_up and not self.refresh.unfinished and number not in self._replaced
        return ArtifactAddress(self.ctx.store, key, kind, refresh, self.before_writing, label, must_exist=must_exist)
