"""The contents of a run's pages. Each part is read or drawn once, when the first page needs it."""

from collections.abc import Sequence
from functools import cached_property

from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.report.before_after import BeforeAfter, find_before_after
from flows.report.example_group import ExampleGroup, find_example_group
from flows.report.figures import IterationFigures, iteration_figures
from flows.report.pictures.batch_picture import BatchView, draw, read_batch
from flows.report.pictures.plots import run_plots
from flows.report.pictures.timeline_picture import timeline_picture
from flows.report.study.study import RunStudy, pictures, read_run_study
from flows.report.suites import curves
from flows.report.summary import before_after_names
from flows.report.timeline import Timeline, run_timeline
from stages.strategies.figures import StrategiesFigures, stored_figures


class RunView:
    """A run as its report and its pages in Prefect show it.

    Every part raises IntegrityError if a file that it reads is damaged.

    Attributes:
        record: The run so far; perhaps without the manifests of older iterations.
        store: The run's store.
        figures: The figures of each iteration; read from the record if they are not given.
    """

    def __init__(self, record: RunRecord, store: Store, figures: Sequence[IterationFigures] | None = None) -> None:
        self.record, self.store = record, store
        self.figures = [iteration_figures(item) for item in record.iterations] if figures is None else list(figures)

    @cached_property
    def study(self) -> RunStudy:
        """Learning curve, fit, answers and alarms, read from the tables of all iterations."""
        return read_run_study(self.record, self.store)

    @cached_property
    def before_after(self) -> BeforeAfter | None:
        """One puzzle before and after GRPO; None if no completion makes statements."""
        return find_before_after(self.record, self.store)

    @cached_property
    def strategies(self) -> dict[str, StrategiesFigures]:
        """The figures of test-time strategies before and after training; empty with one sample of each puzzle."""
        reports = zip(before_after_names(self.record), self.record.tests(self.store).values(), strict=True)
        measured = {name: stored_figures(report) for name, report in reports}
        return {name: figures for name, figures in measured.items() if figures.strategies}

    @cached_property
    def example(self) -> ExampleGroup | None:
        """An example group of the newest iteration that is graded; None if none is."""
        graded = self.record.newest_graded
        return find_example_group(graded, self.record.layout, self.store) if graded else None

    @cached_property
    def batch(self) -> tuple[int, BatchView] | None:
        """The newest packed batch and its iteration; None if no batch is stored."""
        packed = next((item for item in reversed(self.record.iterations) if item.kept("pack")), None)
        return (packed.number, read_batch(packed, self.record.layout, self.store)) if packed else None

    @cached_property
    def plots(self) -> dict[str, bytes]:
        """The plots over iterations, as PNG, by file name."""
        return run_plots(self.figures, curves(self.record) if self.record.suites else {})

    @cached_property
    def timeline(self) -> Timeline | None:
        """The timeline of a typical iteration; None if the run did not record it."""
        return run_timeline(self.record, self.store)

    @cached_property
    def timeline_picture(self) -> bytes | None:
        """The picture of `timeline`, as PNG; None without it."""
        return timeline_picture(self.timeline) if self.timeline else None

    @cached_property
    def study_plots(self) -> dict[str, bytes]:
        """The plots of the study, as PNG, by file name."""
        return pictures([self.study])

    @cached_property
    def batch_picture(self) -> bytes | None:
        """The picture of the newest packed batch, as PNG; None if no batch is stored or if it has no rows."""
        return draw(self.batch[1]) if self.batch and self.batch[1].steps else None
