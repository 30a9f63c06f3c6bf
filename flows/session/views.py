"""Interfaces of the views of a run.

The main path uses these protocols only; `flows.opening` attaches the views of `flows.report`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.config.recipe import Recipe

if TYPE_CHECKING:
    from flows.lookup.history import IterationRecord


class ProgressView(Protocol):
    """Display of a flow's progress (see `flows.report.terminal.live.LiveView`)."""

    @property
    def executed(self) -> bool:
        """Whether a stage was executed, instead of found in the store, since the last iteration finished."""
        ...

    def opened(self, title: str) -> None:
        """Shows that work begins."""
        ...

    def run_opened(self, store: Store, layout: RunLayout, recipe: Recipe) -> None:
        """Shows that a run begins or continues."""
        ...

    def line(self, text: str) -> None:
        """Writes one line."""
        ...

    def stage_started(self, name: str) -> None:
        """Shows that a stage begins: its artifact is looked up and, if the store lacks it, the stage is executed."""
        ...

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Shows that a long stage has reached `done` of `total`. Called often and from any thread."""
        ...

    def stage_finished(self, name: str, seconds: float, reused: bool) -> None:
        """Shows that a stage has published its artifact, or found it in the store (`reused`)."""
        ...

    def iteration_finished(self, newest: "IterationRecord") -> None:
        """Shows the figures of an iteration that has published all its artifacts."""
        ...


class RunPages(Protocol):
    """Stored views of a run: Prefect's pages, the tracker and the report (see `flows.report.shown_run.ShownRun`)."""

    def iteration_finished(self, newest: "IterationRecord", *, executed: bool) -> str | None:
        """Shows the run up to its newest iteration, and returns a warning to show, if there is one.

        Args:
            newest: That iteration, which has published all its artifacts.
            executed: Whether a stage of it was executed; if not, an earlier command has shown the iteration.
        """
        ...

    def finished(self) -> tuple[str, bool]:
        """Shows the whole run and writes its report, unless the store's report shows just that.

        Returns:
            The key of the report's page, and whether an earlier command had written it.
        """
        ...
