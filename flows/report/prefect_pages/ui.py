"""Shows a run in Prefect's interface. Call it in a flow, outside tasks, because a cached task does not run.

Each key belongs to one run and one page, so the versions under a key are the history of the run.
"""

import base64
import logging
import time
from dataclasses import replace

import httpx
from prefect.exceptions import PrefectException

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.lookup.history import RunRecord, read_iteration, read_run
from flows.orchestration.artifact_keys import slug
from flows.orchestration.shown_artifacts import ShownArtifacts
from flows.report import batch_picture
from flows.report.example_group import find_example_group
from flows.report.figures import IterationFigures, iteration_figures
from flows.report.metric_names import before_after_metrics, iteration_metrics
from flows.report.plots import accuracy_plot, health_plot, reward_plot, seconds_plot, suites_plot
from flows.report.prefect_pages import ui_text
from flows.report.suites import curves
from flows.report.trackers import Tracker

SLOW_INTERVAL_S = 30.0
"""Pages that take as long to make as a short stage are updated at most once in this time."""
_SMALL_DPI = 70
"""The interface stores pictures in its database, and prints the data URL of a picture below it."""


class ShownRun:
    """Shows a run in its tracker and in Prefect's interface; a failure to show is logged and stops nothing."""

    def __init__(
        self,
        layout: RunLayout,
        store: Store,
        tracker: Tracker,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        link: str | None = None,
    ) -> None:
        self.layout, self.store, self.tracker, self._log, self._link = layout, store, tracker, log, link
        self._record: RunRecord | None = None
        self._tracked = -1
        self._slow_at = -SLOW_INTERVAL_S

    def iteration_finished(self, n: int, *, anew: bool) -> None:
        """Shows the run up to iteration `n`.

        Args:
            anew: Whether a stage of it was executed; a cached iteration has been shown in Prefect before.
        """
        record = self._up_to(n)
        self._track(record)
        if anew:
            self._in_prefect(record, slow=time.monotonic() - self._slow_at >= SLOW_INTERVAL_S)

    def finished(self, record: RunRecord) -> None:
        """Shows the whole run, with the measurements before and after training."""
        self._track(record)
        self.tracker.conclude(before_after_metrics(record.evaluations))
        self._in_prefect(record, slow=True)

    def _up_to(self, n: int) -> RunRecord:
        """Returns the run up to iteration `n`. That iteration is read again, because it may have been made again."""
        if self._record is None:
            self._record = read_run(self.store, self.layout.run)
        known = {item.number: item for item in self._record.iterations}
        known[n] = read_iteration(self.store, self.layout, n)
        self._record = replace(self._record, iterations=[known[number] for number in sorted(known)])
        return replace(self._record, iterations=[item for item in self._record.iterations if item.number <= n])

    def _track(self, record: RunRecord) -> None:
        for item in record.iterations:
            if item.number > self._tracked:
                self.tracker.log(item.number, iteration_metrics(item))
                self._tracked = item.number

    def _in_prefect(self, record: RunRecord, *, slow: bool) -> None:
        try:
            show_in_prefect(record, self.store, slow=slow, link=self._link)
        except (httpx.HTTPError, PrefectException) as error:
            self._log.warning("iteration is not shown in Prefect: %s", error)
        if slow:
            self._slow_at = time.monotonic()


def show_in_prefect(record: RunRecord, store: Store, *, slow: bool = True, link: str | None = None) -> None:
    """Adds a version under each of the run's keys: RUN-summary, -iterations, -seconds and -store, and the slow ones.

    Args:
        record: The run so far.
        store: The run's store.
        slow: Also update the slow pages: RUN-completions (reads tables), RUN-plots, RUN-accuracy and RUN-batch.
        link: The profile's `store_link`: a web address with `{key}`.
    """
    run = slug(record.layout.run)
    figures = [iteration_figures(item) for item in record.iterations]
    title = ui_text.headline(figures)
    with ShownArtifacts() as shown:
        shown.markdown(f"{run}-summary", ui_text.summary_page(record, store), title)
        shown.table(f"{run}-iterations", ui_text.iteration_rows(figures), title)
        shown.table(f"{run}-seconds", ui_text.seconds_rows(figures), "Seconds of each stage")
        shown.markdown(f"{run}-store", ui_text.store_page(record, store, link), "Where the artifacts lie")
        if slow:
            _show_completions(shown, record, store, run)
            _show_pictures(shown, record, store, figures, run, title, ui_text.elsewhere(record, store, link))


def _show_completions(shown: ShownArtifacts, record: RunRecord, store: Store, run: str) -> None:
    graded = [item for item in record.iterations if item.kept("sample", "grade")]
    if graded and (specimen := find_example_group(graded[-1], record.layout, store)):
        words = f"Best, median and worst completion of one puzzle of iteration {specimen.iteration}"
        shown.markdown(f"{run}-completions", ui_text.completions_page(specimen), words)


def _show_pictures(
    shown: ShownArtifacts,
    record: RunRecord,
    store: Store,
    figures: list[IterationFigures],
    run: str,
    title: str,
    note: str,
) -> None:
    accuracy = accuracy_plot(figures, dpi=_SMALL_DPI)
    drawn = {
        "accuracy": accuracy,
        "reward": reward_plot(figures, dpi=_SMALL_DPI),
        "length, entropy, clip fraction, sampler-trainer gap, KL": health_plot(figures, dpi=_SMALL_DPI),
        "seconds of each stage": seconds_plot(figures, dpi=_SMALL_DPI),
    }
    if record.suites:
        drawn["accuracy on each suite"] = suites_plot(curves(record), dpi=_SMALL_DPI)
    shown.markdown(f"{run}-plots", ui_text.plots_page(drawn, note), title)
    shown.image(f"{run}-accuracy", f"data:image/png;base64,{base64.b64encode(accuracy).decode()}", title)
    packed = [item for item in record.iterations if item.kept("pack")]
    if packed and (batch := batch_picture.read_batch(packed[-1], record.layout, store)):
        number = packed[-1].number
        shown.markdown(
            f"{run}-batch", ui_text.batch_page(number, batch, note), f"The packed batch of iteration {number}"
        )
