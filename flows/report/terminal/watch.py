"""The screen of `deerstalker show RUN --watch`, drawn from the run's store, so on any machine."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from artifacts.errors import DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.store.store import Store
from artifacts.verification import Damage
from flows.lookup.history import IterationRecord, RunRecord, read_run
from flows.lookup.stages import PARTS, REQUIRED
from flows.report.example_group import Sample, find_samples
from flows.report.figures import IterationFigures, iteration_figures, measured, terminal_columns
from flows.report.metrics import mean_known, text
from flows.report.terminal.live import table_header, table_row
from flows.report.terminal.samples import sample_lines
from flows.report.text.visible import one_line

_BLOCKS = "▁▂▃▄▅▆▇█"
_LOOK_EVERY_S = 5.0
_LARGEST_SHARE = 0.05
"""Largest share of the time that the run is read, if it changes all the time."""
_FEWEST_ROWS = 3
_SAMPLE_LINES = 4


def watch(store: Store, run: str, samples: int, console: Console) -> None:
    """Shows a run and its newest figures until the command is interrupted; the last screen stays.

    Args:
        store: The run's store; nothing is written.
        run: Name of the run.
        samples: Number of completions of the newest graded iteration to show.
        console: A terminal.

    Raises:
        BadInputError: The store has no such run.
    """
    screen = RunScreen(store, run, samples)
    screen.look()
    with Live(
        screen, console=console, refresh_per_second=1, vertical_overflow="crop", redirect_stdout=False,
        redirect_stderr=False,
    ):  # fmt: skip
        took_s = 0.0
        while True:
            time.sleep(_LOOK_EVERY_S + took_s * (1 / _LARGEST_SHARE - 1))
            try:
                took_s, screen.trouble = screen.look(), ""
            except DeerstalkerError as error:  # the store is away, or what was read is being made again
                screen.trouble = str(error)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Returns a curve as block characters from the lowest to the highest value; a space stands for no value.

    Args:
        values: The curve. If there are more than `width` values, each character shows the mean of several.
        width: Largest number of characters.
    """
    count = min(len(values), width)
    means = [
        mean_known(values[len(values) * place // count : len(values) * (place + 1) // count]) for place in range(count)
    ]
    known = [value for value in means if value is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / span if span else 0.0
    return "".join(" " if value is None else _BLOCKS[round((value - low) * scale)] for value in means)


class RunScreen:
    """The newest state of a run that `look` has found, as rich draws it: table, curves, samples, and what is next.

    Attributes:
        trouble: Why the last look found nothing newer; empty if it did.
    """

    def __init__(self, store: Store, run: str, samples: int = 0) -> None:
        self._store, self._layout, self._count = store, RunLayout(run), samples
        self._keys: list[str] | None = None
        self._record: RunRecord | None = None
        self._samples: list[Sample] = []
        self._sampled: dict[str, str] = {}  # digests of what the samples were read from, by stage
        self._damaged: list[Damage] = []
        self.trouble = ""

    def look(self) -> float:
        """Reads the run again if its files have changed, and returns the seconds that this took.

        Raises:
            BadInputError: The store has no such run.
            IntegrityError: Its recipe or a sample is damaged.
        """
        began, keys = time.monotonic(), sorted(self._store.list(self._layout.root))
        if keys != self._keys:
            damaged: list[Damage] = []
            record = read_run(self._store, self._layout.run, damaged)
            graded = record.newest_graded
            made = graded.manifests if graded else {}
            read = {stage: made[stage].digest for stage in ("grade", "teach", "value") if stage in made}
            if graded and self._count and read != self._sampled:
                self._samples = find_samples(graded, record.layout, self._store, self._count)
                self._sampled = read
            self._record, self._keys, self._damaged = record, keys, damaged
        return time.monotonic() - began

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._record is None:
            return
        width = options.max_width
        iterations = [iteration_figures(item) for item in self._record.iterations]
        curves = _curves(iterations, width)
        samples = [line for sample in self._samples for line in [Text(), *sample_lines(sample, width, _SAMPLE_LINES)]]
        below = [*curves, *samples]
        columns = measured(terminal_columns(iterations), iterations)
        rows = max(_FEWEST_ROWS, console.height - len(below) - 6)
        lines = [
            Text(one_line(f"{self._layout.run}: {self._record.recipe['title']}"), style="bold"),
            Text(self._status(self._record), style="cyan"),
            Text(),
            Text(table_header(columns), style="bold"),
            *(Text(table_row(item, columns), style="green" if item.promoted else "") for item in iterations[-rows:]),
            Text(),
            *below,
        ]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line

    def _status(self, record: RunRecord) -> str:
        """Returns what the run does next, how long ago it published something, and the number of damaged files."""
        newest, last = record.iterations[-1] if record.iterations else None, record.recipe["iterations"]
        number, stage = _next(newest)
        manifests = [item for iteration in record.iterations for item in iteration.manifests.values()]
        parts = [f"iteration {number} of {max(number, last)}: {stage}"]
        if newest and newest.number >= last and record.ended and number > newest.number:
            parts = [f"finished: {self._store.url}/{self._layout.page}"]
        elif stage == "sample":
            folder = f"{self._layout.iteration(number, PARTS['sample'])}/progress-"
            parts[0] += f", {sum(key.startswith(folder) for key in self._keys or ())} groups are stored"
        if manifests:
            age = datetime.now(UTC) - max(manifest.made_at for manifest in manifests)
            parts.append(f"the newest artifact is {max(age.total_seconds(), 0.0):.0f} s old")
        if self._damaged:
            parts.append(f"{len(self._damaged)} damaged files: see `deerstalker verify`")
        if self.trouble:
            parts.insert(0, f"not up to date: {self.trouble}")
        return "; ".join(parts)


def _next(newest: IterationRecord | None) -> tuple[int, str]:
    """Returns the iteration and the stage that publish next, given the newest iteration."""
    if newest is None:
        return 0, "evaluate"
    missing = [stage for stage in REQUIRED if stage not in newest.manifests]
    if newest.number and missing:
        return newest.number, missing[0]
    return newest.number + 1, REQUIRED[0]


def _curves(iterations: Sequence[IterationFigures], width: int) -> list[Text]:
    """Returns a line for each metric of the table that has two values: its curve, its first and its newest value."""
    lines: list[Text] = []
    for metric in measured(terminal_columns(iterations), iterations):
        values = [item.value(metric.key) for item in iterations]
        known = [text(value, metric.terminal) for value in values if value is not None]
        if len(known) > 1:
            ends = f"{known[0]} to {known[-1]}"
            lines.append(Text(f"{metric.column:>13} {sparkline(values, width - len(ends) - 15)} {ends}"))
    return lines
