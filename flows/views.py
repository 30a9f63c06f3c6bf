"""What a run tells those who look at it.

The main path knows its views by these protocols only; `flows.opening` attaches those of `flows.report`.
"""

from collections.abc import Mapping
from typing import Protocol

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.config.recipe import Recipe


class ProgressView(Protocol):
    """What a person watches while a flow is at work (see `flows.report.terminal.live.LiveView`)."""

    @property
    def executed(self) -> bool:
        """Whether a stage was executed, not found in the store, since the last iteration finished."""
        ...

    def opened(self, title: str) -> None:
        """Work begins."""
        ...

    def run_opened(self, store: Store, layout: RunLayout, recipe: Recipe) -> None:
        """A run begins or goes on."""
        ...

    def line(self, text: str) -> None:
        """Writes one line."""
        ...

    def stage_started(self, name: str) -> None:
        """A stage is looked up in the store and, if it is not there, executed."""
        ...

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """A long stage has come to `done` of `total`; may be called from any thread, and often."""
        ...

    def stage_finished(self, name: str, seconds: float, reused: bool) -> None:
        """A stage has published, or was found published."""
        ...

    def iteration_finished(self, n: int) -> None:
        """Iteration `n` has published all its artifacts."""
        ...


class RunPages(Protocol):
    """What stays of a run: Prefect's pages, the tracker and the report (see `flows.report.shown_run.ShownRun`)."""

    def iteration_finished(self, n: int, *, anew: bool) -> None:
        """Shows the run up to iteration `n`.

        Args:
            anew: A stage of it was executed; what was only found in the store has been shown before.
        """
        ...

    def finished(self) -> str:
        """Writes the report, shows the whole run, and returns the key of the report's page."""
        ...
