"""Draws plots as PNG. Matplotlib is imported when the first plot is drawn; its `pyplot` never is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flows.lookup.history import STAGES
from flows.report.figures import IterationFigures, plotted
from flows.report.png import INK, MUTED, to_png
from flows.report.text.visible import visible
from stages.statistics.records import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = "#e5e7eb"
SAMPLED, GREEDY, TRAIN = "#0f766e", "#c2410c", "#9ca3af"
CONTRADICTED = "#b91c1c"
MODE_COLOURS = {"sampled": SAMPLED, "greedy": GREEDY}
STAGE_COLOURS = ("#0f766e", "#a3b18a", "#d6d3d1", "#c2410c", "#1d4ed8", "#7c3aed")
_DPI = 150


def accuracy_plot(iterations: Sequence[IterationFigures], dpi: int = _DPI) -> bytes:
    """Draws held-out accuracy with its 95% band, sampled and greedy, and the accuracy of the training rollouts."""
    figure, axes = _figure(5.6, 3.3, dpi)
    for mode, colour in MODE_COLOURS.items():
        points = [(item.number, measured) for item in iterations if (measured := _measured(item, mode))]
        _band(axes, points, colour, f"held-out, {mode}")
    rollouts = [
        (item.number - 1, accuracy) for item in iterations if (accuracy := item.value("train_accuracy")) is not None
    ]
    if rollouts:
        numbers, means = zip(*rollouts, strict=True)
        axes.plot(numbers, means, color=TRAIN, linewidth=1.4, linestyle="--", label="train puzzles, rollouts")
    stars = [(item.number, item.sampled.accuracy.mean) for item in iterations if item.promoted and item.sampled]
    if stars:
        axes.scatter(*zip(*stars, strict=True), marker="*", s=70, color=SAMPLED, zorder=4, label="promoted")
    _finish(axes, "accuracy", "weights after iteration", percent=True)
    return to_png(figure)


def suites_plot(curves: Mapping[str, Mapping[str, Sequence[tuple[int, Measurement]]]], dpi: int = _DPI) -> bytes:
    """Draws accuracy with its 95% band, one panel for each suite, on one scale.

    Args:
        curves: Curves as pairs of iteration and measurement, by title of the suite and by mode.
    """
    from matplotlib.figure import Figure

    columns = min(3, len(curves))
    figure = Figure(figsize=(3.6 * columns, 3.1 * -(-len(curves) // columns)), dpi=dpi, layout="constrained")
    panels = figure.subplots(-(-len(curves) // columns), columns, sharey=True, squeeze=False).flat
    for axes, (title, modes) in zip(panels, curves.items(), strict=False):
        for mode, points in modes.items():
            _band(axes, points, MODE_COLOURS[mode], mode)
        _finish(axes, title, "weights after iteration", percent=True)
    for axes in list(figure.axes)[len(curves) :]:
        axes.set_visible(False)
    return to_png(figure)


def reward_plot(iterations: Sequence[IterationFigures], dpi: int = _DPI) -> bytes:
    """Draws the mean reward of each iteration's rollouts and the spread of rewards within a group."""
    figure, axes = _figure(5.6, 3.3, dpi)
    _line(axes, iterations, "reward", label="mean reward")
    _line(axes, iterations, "reward_spread", colour=GREEDY, label="spread within a group", style="--")
    _finish(axes, "reward", "iteration")
    return to_png(figure)


def makes_statements(iterations: Sequence[IterationFigures]) -> bool:
    """Returns whether held-out answers of any iteration make statements; otherwise `statements_plot` is empty."""
    return any(item.value("proved_statements") is not None for item in iterations)


def statements_plot(iterations: Sequence[IterationFigures], dpi: int = _DPI) -> bytes:
    """Draws the mean numbers of proved and of contradicted statements in a held-out answer, for each iteration."""
    figure, axes = _figure(5.6, 3.3, dpi)
    _line(axes, iterations, "proved_statements", label="proved by the clues")
    _line(axes, iterations, "contradicted_statements", colour=CONTRADICTED, label="contradicted", style="--")
    _finish(axes, "statements of a held-out answer, sampled", "weights after iteration")
    axes.set_ylim(bottom=0)
    return to_png(figure)


def health_plot(iterations: Sequence[IterationFigures], dpi: int = _DPI) -> bytes:
    """Draws the metrics that the registry marks as plotted, a panel each; KL only if it was measured."""
    from matplotlib.figure import Figure

    panels = plotted(iterations)
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(5.6, 1.8 * rows), dpi=dpi, layout="constrained")
    for axes, metric in zip(figure.subplots(rows, 2).flat, panels, strict=False):
        _line(axes, iterations, metric.key)
        _finish(axes, f"{metric.title}, {metric.unit}" if metric.unit else metric.title, "", percent=metric.is_percent)
        if not any((item.value(metric.key) or 0.0) < 0.0 for item in iterations):  # an estimate of KL may be negative
            axes.set_ylim(bottom=0)
    for axes in list(figure.axes)[len(panels) :]:
        axes.set_visible(False)
    return to_png(figure)


def seconds_plot(iterations: Sequence[IterationFigures], dpi: int = _DPI) -> bytes:
    """Draws the seconds of each stage, stacked, one bar for each iteration."""
    figure, axes = _figure(5.6, 3.6, dpi)
    timed = [item for item in iterations if item.number > 0]
    bottom, worth_showing_s = [0.0] * len(timed), 0.01 * sum(item.total_s for item in timed)
    for stage, colour in zip(STAGES, STAGE_COLOURS, strict=True):
        height = [item.seconds.get(stage, 0.0) for item in timed]
        if sum(height) > worth_showing_s:
            axes.bar([item.number for item in timed], height, bottom=bottom, color=colour, width=0.8, label=stage)
        bottom = [low + part for low, part in zip(bottom, height, strict=True)]
    _finish(axes, "seconds a stage", "iteration", legend_columns=3)
    return to_png(figure)


def histogram_plot(values: Sequence[int], title: str, x_label: str) -> bytes:
    """Draws how often each value, or each range of values, occurs."""
    figure, axes = _figure(5.6, 3.0)
    low, high = min(values), max(values)
    bins = [low - 0.5 + i for i in range(high - low + 2)] if high - low < 40 else 30
    axes.hist(values, bins=bins, color=SAMPLED, rwidth=0.9)
    _finish(axes, title, x_label)
    return to_png(figure)


def bars_plot(values: Mapping[str, float], title: str, spans: Mapping[str, tuple[float, float]] | None = None) -> bytes:
    """Draws a bar for each name, the first on top; `spans` adds a line from the lowest to the highest value to each."""
    figure, axes = _figure(5.6, 0.9 + 0.28 * len(values))
    names = list(values)[::-1]
    axes.barh([_label(name) for name in names], [values[name] for name in names], color=SAMPLED, height=0.7)
    for position, name in enumerate(names):
        if spans:
            axes.plot(spans[name], (position, position), color=GREEDY, linewidth=2)
    _finish(axes, title, "", horizontal=True)
    return to_png(figure)


def _band(axes: "Axes", points: Sequence[tuple[int, Measurement]], colour: str, label: str) -> None:
    """Draws a curve of accuracies with their 95% intervals; nothing if there is no point."""
    if not points:
        return
    numbers, accuracy = [number for number, _ in points], [measurement.accuracy for _, measurement in points]
    low, high = [max(0.0, a.low) for a in accuracy], [min(1.0, a.high) for a in accuracy]
    axes.fill_between(numbers, low, high, color=colour, alpha=0.13, linewidth=0)
    means = [a.mean for a in accuracy]
    axes.plot(numbers, means, color=colour, linewidth=2, label=label, marker=_marker(points), markersize=4)


def _measured(item: IterationFigures, mode: str) -> Measurement | None:
    return item.sampled if mode == "sampled" else item.greedy


def _marker(points: Sequence[object]) -> str:
    return "o" if len(points) <= 40 else ""


def _figure(width_in: float, height_in: float, dpi: int = _DPI) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=dpi, layout="constrained")
    return figure, figure.subplots()


def _line(
    axes: "Axes",
    iterations: Sequence[IterationFigures],
    key: str,
    *,
    colour: str = SAMPLED,
    label: str | None = None,
    style: str = "-",
) -> None:
    points = [(item.number, value) for item in iterations if (value := item.value(key)) is not None]
    if points:
        numbers, values = zip(*points, strict=True)
        dots = _marker(points)
        axes.plot(numbers, values, style, color=colour, linewidth=1.8, label=label, marker=dots, markersize=4)


def _finish(
    axes: "Axes", title: str, x_label: str, *, percent: bool = False, legend_columns: int = 1, horizontal: bool = False
) -> None:
    """Adds title, ticks, grid and legend.

    Args:
        percent: Whether the values on the y axis are shares.
        horizontal: Whether the values are on the x axis; otherwise ticks of the x axis are whole numbers.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold", pad=8)
    axes.set_xlabel(x_label, fontsize=9, color=MUTED)
    if not horizontal:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if axes.get_ylim()[1] > 0.05 else 2))
    axes.grid(axis="x" if horizontal else "y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    if axes.get_legend_handles_labels()[0]:
        if legend_columns > 1:
            axes.set_ylim(top=1.25 * axes.get_ylim()[1])
        axes.legend(fontsize=8, frameon=False, labelcolor=INK, ncols=legend_columns)


def _label(name: str) -> str:
    """Returns a name as a label; dollar signs are escaped, because matplotlib reads text between two as a formula."""
    return visible(name).replace("$", r"\$")
