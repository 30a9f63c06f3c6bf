"""Shows a run in its tracker, in Prefect's pages and in its report."""

import gc
import logging
import time
from dataclasses import replace

from artifacts.errors import DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.lookup.alarms import alarm_point, alarm_rule, alarms_of
from flows.lookup.history import IterationRecord, RunRecord, read_run
from flows.orchestration.api_errors import API_ERRORS
from flows.orchestration.reward_alarm import emit_reward_alarm
from flows.report.figures import IterationFigures, iteration_figures
from flows.report.html.run_report import has_report, store_report
from flows.report.metric_names import before_after_metrics, iteration_metrics
from flows.report.prefect_pages.ui import show_in_prefect
from flows.report.run_view import RunView
from flows.report.timeline import iteration_timeline, store_warning
from flows.report.trackers import Tracker
from stages.processes.memory import hand_back_freed
from stages.promotion.promoted import read_promoted
from stages.promotion.reward_alarm import AlarmPoint, alarm_windows

SLOW_INTERVAL_S = 30.0
"""Minimum time between updates of the slow pages, each of which takes as long as a short stage."""
SLOW_SHARE = 0.03
"""Largest share of a run's time that these updates take; they take 1 s on a quick machine, 3 s on a busy one."""
KEPT = 50
"""Newest iterations whose manifests a run keeps in memory: 0.1 MB an iteration."""
COLLECTED_EVERY = 10
"""Iterations between collections of garbage. One leaves 1 MB, Python would let 50 MB lie; each takes 0.05 to 0.25 s."""


class ShownRun:
    """Shows a run in its tracker and in Prefect's interface; what cannot be shown of an iteration is only logged."""

    def __init__(
        self,
        layout: RunLayout,
        store: Store,
        tracker: Tracker | None,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        link: str | None = None,
    ) -> None:
        self.layout, self.store, self.tracker, self._log, self._link = layout, store, tracker, log, link
        self._record: RunRecord | None = None
        self._figures: dict[int, IterationFigures] = {}
        self._alarm_points: dict[int, AlarmPoint] = {}
        self._store_is_slow = False
        self._tracked = -1
        self._slow_due_at = 0.0

    def iteration_finished(self, newest: IterationRecord, *, executed: bool) -> str | None:
        """Shows the run up to an iteration, and returns a warning if reward rises while held-out accuracy falls.

        Iterations of which no stage is executed are shown with the first one that is: a run of a thousand goes on in
        seconds. A tracker gets them at once.

        Args:
            newest: The iteration, which has published all its artifacts.
            executed: Whether a stage of it was executed; otherwise Prefect's pages show it already.
        """
        if self._record is None and not executed and self.tracker is None:
            return None
        try:
            record = self._up_to(newest)
            if executed:
                if newest.number % COLLECTED_EVERY == 0:
                    gc.collect()
                view = RunView(record, self.store, list(self._figures.values()))
                self._show_in_prefect(view, slow=time.monotonic() >= self._slow_due_at)
                self._warn_of_slow_store(record, newest.number)
            return self._warn(record, executed=executed)
        except (DeerstalkerError, OSError) as error:  # no decision depends on what is shown
            self._log.warning("iteration %d is not shown: %s", newest.number, error)
            return None

    def finished(self) -> tuple[str, bool]:
        """Shows the whole run with its test results, and last writes its report, unless that shows just this already.

        Returns:
            The key of the report's page, and whether an earlier command had written it.
        """
        ended = read_run(self.store, self.layout.run, up_to=0)
        if self.tracker:
            self.tracker.conclude(before_after_metrics(ended.evaluations))
        if has_report(ended, self.store):
            return self.layout.page, True
        view = RunView(read_run(self.store, self.layout.run), self.store)
        self._show_in_prefect(view, slow=True)
        return store_report(view), False

    def _up_to(self, newest: IterationRecord) -> RunRecord:
        """Returns the run up to an iteration, which replaces what is known of it: a refresh may have changed it.

        The tracker gets all iterations that it has not seen. Of older ones the record has only what pages need:
        iteration 0, the promoted one, the newest `KEPT`, and of the others the decisions about the phase. It has
        neither suites nor results after training: both belong to a run that has ended, whose iterations are all read.
        """
        n = newest.number
        if self._record is None:
            whole = read_run(self.store, self.layout.run, damaged=[], up_to=n)
            before = {when: manifest for when, manifest in whole.evaluations.items() if when != "after"}
            record = replace(whole, evaluations=before, suites={})
            self._alarm_points = {item.number: alarm_point(item, record.recipe) for item in record.iterations}
            self._figures = {item.number: iteration_figures(item) for item in record.iterations}
        else:
            self._alarm_points[n] = alarm_point(newest, self._record.recipe)
            windows = alarm_windows(self._alarm_points.values(), alarm_rule(self._record.recipe), newest=1)
            newest = replace(newest, alarm=windows.get(n))
            self._figures[n] = iteration_figures(newest)
            others = [item for item in self._record.iterations if item.number != n]
            promoted = read_promoted(self.store, self.layout.promoted)
            record = replace(self._record, promoted=promoted, iterations=[*others, newest])
        self._track(record)
        wanted = {0, record.promoted.iteration if record.promoted else 0, *range(n - KEPT + 1, n + 1)}
        kept = [item if item.number in wanted else _decision_about_phase(item) for item in record.iterations]
        self._record = replace(record, iterations=[item for item in kept if item.manifests])
        return self._record

    def _warn(self, record: RunRecord, *, executed: bool) -> str | None:
        """Returns the alarm of the newest iteration in words, if any; emits an event if the alarm begins there."""
        newest = record.iterations[-1].alarm
        if newest is None or not newest.certain:
            return None
        if executed and newest in alarms_of(record.iterations):
            emit_reward_alarm(self.layout.run, newest)
        return f"alarm: {newest}"

    def _warn_of_slow_store(self, record: RunRecord, n: int) -> None:
        """Logs once if iteration `n` waited long for the store."""
        line = None if self._store_is_slow else iteration_timeline(record, n, self.store)
        if line and (warning := store_warning(line, self.store.url)):
            self._store_is_slow = True
            self._log.warning("%s", warning)

    def _track(self, record: RunRecord) -> None:
        for item in record.iterations:
            if self.tracker and item.number > self._tracked:
                self.tracker.log(item.number, iteration_metrics(item))
                self._tracked = item.number

    def _show_in_prefect(self, view: RunView, *, slow: bool) -> None:
        started = time.monotonic()
        try:
            show_in_prefect(view, slow=slow, link=self._link)
        except (*API_ERRORS, DeerstalkerError) as error:  # no decision depends on a page
            self._log.warning("the run's pages in Prefect are not up to date: %s", error)
        if slow:
            hand_back_freed()  # of its largest pages
            ended = time.monotonic()
            self._slow_due_at = ended + max(SLOW_INTERVAL_S, (ended - started) / SLOW_SHARE)


def _decision_about_phase(item: IterationRecord) -> IterationRecord:
    """Returns an iteration without what its other stages published; `manifests` is empty in a run without phases."""
    return IterationRecord(item.number, {stage: made for stage, made in item.manifests.items() if stage == "advance"})


def publish_report(store: Store, run: str) -> str:
    """Writes a run's report into the store, shows it in Prefect, and returns the key of its page; call it in a flow.

    Raises:
        IntegrityError: A file that the report shows is damaged.
    """
    view = RunView(read_run(store, run), store)
    page = store_report(view)
    show_in_prefect(view)
    return page
