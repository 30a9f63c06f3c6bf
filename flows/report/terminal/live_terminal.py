"""The animated view for a terminal: finished rows scroll up, a status line below them shows the current stage."""

import time
from collections.abc import Mapping

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flows.report.figures import IterationFigures
from flows.report.terminal.live import LiveView, progress_text, table_header, table_row
from flows.report.text.visible import one_line

_REFRESHES_PER_S = 6


class TerminalView(LiveView):
    """Shows the lines of the plain view, except those of an iteration's stages, above an animated status line."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(stderr=True, highlight=False)
        self._spinner = Spinner("dots", style="cyan")
        self._stage_started_at = time.monotonic()
        self._report: tuple[str, int, int, Mapping[str, float]] | None = None
        self._iteration = 0
        self._newest: IterationFigures | None = None
        self._live = Live(
            self, console=self.console, refresh_per_second=_REFRESHES_PER_S, transient=True, redirect_stdout=False
        )

    def opened(self, title: str) -> None:
        super().opened(title)
        self._live.start()

    def stage_started(self, name: str) -> None:
        super().stage_started(name)
        _, _, suffix = name.rpartition("-")
        self._iteration = int(suffix) if suffix.isdigit() else self._iteration
        self._report, self._stage_started_at = None, time.monotonic()

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        self._report = (label, done, total, dict(figures))

    def stage_finished(self, name: str, seconds: float, reused: bool) -> None:
        self._stage, self._report = "", None
        self.executed |= not reused
        if not name.rpartition("-")[2].isdigit():
            self.line(f"{name:<22} " + ("cached" if reused else f"{seconds:8.1f} s"))

    def show_row(self, figures: IterationFigures, suffix: str) -> None:
        self._newest = figures
        style = "bold green" if figures.promoted else ""
        if self.widened(figures):
            self.console.print(Text(table_header(self._columns), style="bold"), no_wrap=True, crop=True)
        self.console.print(Text(table_row(figures, self._columns) + suffix, style=style), no_wrap=True, crop=True)

    def line(self, text: str) -> None:
        self.console.print(Text(one_line(text)), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        status = Table.grid(padding=(0, 1))
        report = self._report
        status_text = f"{self._stage}  {progress_text(*report)}" if report else self._stage
        bar = ProgressBar(report[2], report[1], width=24) if report and report[2] else Text("")
        status.add_row(
            self._spinner, Text(status_text, style="bold"), bar, Text(f"{now - self._stage_started_at:.0f} s")
        )
        yield Text("")
        yield status
        parts = [f"{_clock(now - self._started)} elapsed"]
        if self._run is not None:
            layout, recipe = self._run
            parts = [layout.run, f"iteration {self._iteration} of {max(self._iteration, recipe.iterations)}", *parts]
        newest = self._newest
        if newest and (reward := newest.value("reward")) is not None:
            parts.append(f"reward {reward:.3f}")
        if newest and newest.sampled:
            parts.append(f"held-out {newest.sampled.accuracy.mean:.1%}")
        if newest and (tokens_per_s := newest.value("sampled_tokens_per_s")):
            parts.append(f"{tokens_per_s:.0f} tokens/s")
        yield Text("  " + "  ·  ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
