"""Shows the progress of a run on stderr; stdout is for results."""

import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.lookup.history import IterationRecord
from flows.report.figures import IterationFigures, iteration_figures, measured, terminal_columns
from flows.report.metrics import Metric, text
from flows.report.text.visible import one_line
from flows.report.text.wrapping import print_labelled

_REPORT_INTERVAL_S = 30.0
"""A progress report is printed if nothing was printed for this long."""
_STAGES_SHOWN = ("sample", "finetune", "evaluate")
"""The stages whose seconds a row of the table shows."""
_UNKNOWN = "-"


class LiveView:
    """The plain view: a line for each stage, a table row for each iteration, and an occasional progress report.

    `progress` may be called from any thread, and often.

    Attributes:
        executed: Whether a stage was executed, rather than found in the store, since the last iteration finished.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = self._last_line = time.monotonic()
        self._stage = ""
        self.executed = False
        self._columns: list[Metric] = []
        self._wider: list[IterationFigures] = []
        self._run: tuple[RunLayout, Recipe] | None = None

    def run_opened(self, store: Store, layout: RunLayout, recipe: Recipe) -> None:
        """Shows that a run begins or continues."""
        self._run = (layout, recipe)
        self.opened(f"run {layout.run}: {recipe.title}")
        self.line(f"{recipe.iterations} iterations; artifacts in {store.url}/{layout.root}")

    def opened(self, title: str) -> None:
        """Shows the title of the work that begins."""
        self._started = time.monotonic()
        self.line(title)

    def stage_started(self, name: str) -> None:
        """Shows that a stage begins: its artifact is looked up in the store, and made if it is missing."""
        self._stage = name

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Shows that a long stage has done `done` of `total` units."""
        with self._lock:
            due = time.monotonic() - self._last_line >= _REPORT_INTERVAL_S
            if due:
                self._last_line = time.monotonic()
        if due:
            self.line(progress_text(label, done, total, figures))

    def stage_finished(self, name: str, seconds: float, reused: bool) -> None:
        """Shows that a stage has published its artifact, or found it in the store (`reused`)."""
        self._stage = ""
        self.executed |= not reused
        self.line(f"{name:<24} " + ("cached" if reused else f"{seconds:8.1f} s"))

    def iteration_finished(self, newest: IterationRecord) -> None:
        """Shows the figures of an iteration that has published all its artifacts."""
        self.show_row(iteration_figures(newest), "" if self.executed else "  cached")
        self.executed = False

    def show_row(self, figures: IterationFigures, suffix: str) -> None:
        """Writes one row of the table of iterations, below a header if no row before had all of its columns."""
        if self.widened(figures):
            self.line(table_header(self._columns))
        self.line(table_row(figures, self._columns) + suffix)

    def widened(self, figures: IterationFigures) -> bool:
        """Adds the columns that an iteration has and no earlier row had; returns whether there are any."""
        columns = terminal_columns([*self._wider, figures])
        if [metric.key for metric in columns] == [metric.key for metric in self._columns]:
            return False
        self._wider.append(figures)
        self._columns = columns
        return True

    def line(self, text: str) -> None:
        """Writes one line."""
        with self._lock:
            self._last_line = time.monotonic()
            # In one write: unbuffered, print would write the line's end separately, and Ctrl-C could come between.
            print(f"{one_line(text)}\n", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Releases the terminal; may be called twice."""


def progress_text(label: str, done: int, total: int, figures: Mapping[str, float]) -> str:
    """Returns a progress report in words; a figure named `starting` means that the engine is starting."""
    if "starting" in figures:
        return f"{label}: starting the engine"
    shown = ", ".join(f"{name.replace('_per_s', '/s')} {value:.4g}" for name, value in figures.items())
    return f"{label}: {done} of {total}" + (f", {shown}" if shown else "")


def table_header(columns: Sequence[Metric]) -> str:
    """Returns the header of the table of iterations.

    Args:
        columns: The metrics of the table (see `terminal_columns`).
    """
    return f"{_figures_header(columns)}  of which {', '.join(_STAGES_SHOWN)}; * promoted"


def table_row(figures: IterationFigures, columns: Sequence[Metric]) -> str:
    """Returns an iteration as a row of the table; a star marks a promoted checkpoint, skipped steps come last.

    Args:
        figures: The iteration.
        columns: The metrics of the table, as in `table_header`.
    """
    parts = (f"{figures.seconds.get(stage, 0.0):.1f}" for stage in _STAGES_SHOWN)
    skipped = f"  {_skipped(figures)}" if figures.value("skipped_steps") else ""
    return f"{_figures_row(figures, columns)}  {', '.join(parts)}{skipped}"


def print_iterations(console: Console, iterations: Sequence[IterationFigures]) -> None:
    """Prints the table of iterations.

    If the console is too narrow for it, the seconds of single stages are left out, and a second table has the metrics
    that only some runs have.
    """
    columns = measured(terminal_columns(iterations), iterations)
    header, rows = table_header(columns), [table_row(figures, columns) for figures in iterations]
    if max(map(len, [header, *rows])) <= console.width:
        _print_rows(console, header, rows)
        return
    common = measured(terminal_columns([]), iterations)
    _print_rows(console, _figures_header(common), [_figures_row(figures, common) for figures in iterations])
    _print_figures(console, iterations, [item for item in columns if item not in common])
    stages = ", ".join(_STAGES_SHOWN)
    print_labelled(console, "* ", f"promoted; --wide also shows the seconds of {stages}")
    for figures in iterations:
        if figures.value("skipped_steps"):
            print_labelled(console, f"iteration {figures.number}: ", _skipped(figures))


def _print_rows(console: Console, header: str, rows: Sequence[str]) -> None:
    console.print(header, highlight=False, soft_wrap=True, style="bold")
    for row in rows:
        console.print(row, highlight=False, soft_wrap=True)


def _print_figures(console: Console, iterations: Sequence[IterationFigures], columns: Sequence[Metric]) -> None:
    """Prints a table of these metrics only; nothing if there are none."""
    if not columns:
        return
    width = _widths(columns)
    rows = [
        f"{figures.number:>8} " + "".join(f"{cell:>{width[key]}}" for key, cell in _cells(figures, columns).items())
        for figures in iterations
    ]
    _print_rows(console, "iteration" + "".join(f"{item.column:>{width[item.key]}}" for item in columns), rows)


def _widths(columns: Sequence[Metric]) -> dict[str, int]:
    """Returns the width of each column by the metric's key: that of its heading or a number, and a space."""
    return {item.key: max(len(item.column), len(format(0.0, item.terminal))) + 1 for item in columns}


def _cells(figures: IterationFigures, columns: Sequence[Metric]) -> dict[str, str]:
    return {item.key: text(figures.value(item.key), item.terminal) or _UNKNOWN for item in columns}


def _figures_header(columns: Sequence[Metric]) -> str:
    width = _widths(columns)
    return f"{'iteration':>9}{''.join(f'{item.column:>{width[item.key]}}' for item in columns)}{'seconds':>8}"


def _figures_row(figures: IterationFigures, columns: Sequence[Metric]) -> str:
    width = _widths(columns)
    number = f"{figures.number}{'*' if figures.promoted else ' '}"
    cells = "".join(f"{cell:>{width[key]}}" for key, cell in _cells(figures, columns).items())
    return f"{number:>9}{cells}{figures.total_s:>8.1f}"


def _skipped(figures: IterationFigures) -> str:
    return f"{figures.values['skipped_steps']} of {figures.values['updates']} steps skipped"


_views = [LiveView()]


def current_view() -> LiveView:
    """Returns the view of this process: that of the innermost `use_view`, or else the plain one."""
    return _views[-1]


@contextmanager
def use_view(view: LiveView) -> Generator[LiveView]:
    """Makes a view the current one inside the block, and closes it at the end, also after an error."""
    _views.append(view)
    try:
        yield view
    finally:
        _views.remove(view)
        view.close()
