"""Draws plots as PNG. Matplotlib is imported when the first plot is drawn; its `pyplot` never is."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from flows.lookup.stages import PARTS
from flows.report.figures import IterationFigures, phase_starts, plotted
from flows.report.pictures.png import (
    CONTRADICTED,
    GREEDY,
    MUTED,
    SAMPLED,
    band,
    blank_figure,
    finish,
    marker,
    new_figure,
    new_panels,
    plain_label,
    to_png,
)
from stages.statistics.estimates import Interval
from stages.statistics.records import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN = "#9ca3af"
MODE_COLOURS = {"sampled": SAMPLED, "greedy": GREEDY}
STAGE_COLOURS = (
    "#0f766e", "#a3b18a", "#b45309", "#ca8a04", "#d6d3d1", "#c2410c", "#1d4ed8", "#7c3aed", "#64748b", "#be185d",
)  # fmt: skip


def run_plots(
    iterations: Sequence[IterationFigures], suites: Mapping[str, Mapping[str, Sequence[tuple[int, Measurement]]]]
) -> dict[str, bytes]:
    """Returns the plots for which a run has data, by file name.

    Args:
        iterations: The run so far.
        suites: See `suites_plot`; empty if the run was measured on no suite.
    """

    def known(*keys: str) -> bool:
        return any(item.value(key) is not None for item in iterations for key in keys)

    drawn: dict[str, bytes] = {}
    if known("sampled_accuracy", "greedy_accuracy", "train_accuracy"):
        drawn["accuracy.png"] = accuracy_plot(iterations)
    if any(held.exact != held.accuracy for item in iterations for held in (item.sampled, item.greedy) if held):
        drawn["exact.png"] = exact_plot(iterations)
    if known("reward"):
        drawn["reward.png"] = reward_plot(iterations)
    if known("proved_statements"):
        drawn["statements.png"] = statements_plot(iterations)
    if plotted(iterations):
        drawn["health.png"] = health_plot(iterations)
    if any(item.total_s for item in iterations if item.number > 0):
        drawn["seconds.png"] = seconds_plot(iterations)
    return drawn | ({"suites.png": suites_plot(suites)} if suites else {})


def accuracy_plot(iterations: Sequence[IterationFigures]) -> bytes:
    """Draws held-out accuracy with its 95% band, sampled and greedy, and the accuracy of the training rollouts."""
    figure, axes = new_figure(5.6, 3.3)
    _held_out(axes, iterations, lambda measured: measured.accuracy)
    rollouts = [
        (item.number - 1 - int(item.value("iterations_behind") or 0), accuracy)
        for item in iterations
        if (accuracy := item.value("train_accuracy")) is not None
    ]
    if rollouts:
        numbers, means = zip(*rollouts, strict=True)
        axes.plot(numbers, means, color=TRAIN, linewidth=1.4, linestyle="--", label="train puzzles, rollouts")
    stars = [(item.number, item.sampled.accuracy.mean) for item in iterations if item.promoted and item.sampled]
    if stars:
        axes.scatter(*zip(*stars, strict=True), marker="*", s=70, color=SAMPLED, zorder=4, label="promoted")
    finish(axes, "accuracy", "weights after iteration", percent=True)
    _mark_phases(axes, iterations, -1.0)
    return to_png(figure)


def exact_plot(iterations: Sequence[IterationFigures]) -> bytes:
    """Draws the share of held-out puzzles whose answers are all right with its 95% band, sampled and greedy."""
    figure, axes = new_figure(5.6, 3.3)
    _held_out(axes, iterations, lambda measured: measured.exact)
    finish(axes, "puzzles with all answers right", "weights after iteration", percent=True)
    _mark_phases(axes, iterations, -1.0)
    return to_png(figure)


def suites_plot(curves: Mapping[str, Mapping[str, Sequence[tuple[int, Measurement]]]]) -> bytes:
    """Draws accuracy with its 95% band, one panel for each suite, on one scale.

    Args:
        curves: Curves as pairs of iteration and measurement, by title of the suite and by mode.
    """
    figure, panels = new_panels(len(curves))
    for axes, (title, modes) in zip(panels, curves.items(), strict=True):
        for mode, points in modes.items():
            band(axes, [(number, measured.accuracy) for number, measured in points], MODE_COLOURS[mode], mode)
        finish(axes, title, "weights after iteration", percent=True)
    return to_png(figure)


def reward_plot(iterations: Sequence[IterationFigures]) -> bytes:
    """Draws the mean reward of each iteration's rollouts and the spread of rewards within a group."""
    figure, axes = new_figure(5.6, 3.3)
    _line(axes, iterations, "reward", label="mean reward")
    _line(axes, iterations, "reward_spread", colour=GREEDY, label="spread within a group", style="--")
    finish(axes, "reward", "iteration")
    _mark_phases(axes, iterations, -0.5)
    return to_png(figure)


def statements_plot(iterations: Sequence[IterationFigures]) -> bytes:
    """Draws the mean numbers of proved and of contradicted statements in a held-out answer, for each iteration."""
    figure, axes = new_figure(5.6, 3.3)
    _line(axes, iterations, "proved_statements", label="proved by the clues")
    _line(axes, iterations, "contradicted_statements", colour=CONTRADICTED, label="contradicted", style="--")
    finish(axes, "statements of a held-out answer, sampled", "weights after iteration")
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    return to_png(figure)


def health_plot(iterations: Sequence[IterationFigures]) -> bytes:
    """Draws a panel for each metric of `figures.plotted`, at least one."""
    panels = plotted(iterations)
    rows = -(-len(panels) // 2)
    figure = blank_figure(5.6, 1.8 * rows)
    for axes, metric in zip(figure.subplots(rows, 2).flat, panels, strict=False):
        _line(axes, iterations, metric.key)
        finish(axes, f"{metric.title}, {metric.unit}" if metric.unit else metric.title, "", percent=metric.is_percent)
        _mark_phases(axes, iterations, -0.5)
        if not any((item.value(metric.key) or 0.0) < 0.0 for item in iterations):  # an estimate of KL may be negative
            axes.set_ylim(0, 1.1 * axes.get_ylim()[1])  # nearly constant values would be drawn on the upper edge
    for axes in list(figure.axes)[len(panels) :]:
        axes.set_visible(False)
    return to_png(figure)


def seconds_plot(iterations: Sequence[IterationFigures]) -> bytes:
    """Draws the seconds of each stage, stacked, one step for each iteration."""
    figure, axes = new_figure(5.6, 3.6)
    timed = {item.number: item for item in iterations if item.number > 0}
    numbers = range(min(timed), max(timed) + 1) if timed else range(0)
    bottom_N, worth_showing_s = np.zeros(len(numbers)), 0.01 * sum(item.total_s for item in timed.values())
    for stage, colour in zip(PARTS, cycle(STAGE_COLOURS), strict=False):
        height_N = np.array([timed[n].seconds.get(stage, 0.0) if n in timed else 0.0 for n in numbers])
        if height_N.sum() > worth_showing_s:
            edges = np.arange(len(numbers) + 1) + numbers.start - 0.5  # one shape a stage; a bar each takes seconds
            axes.stairs(bottom_N + height_N, edges, baseline=bottom_N, fill=True, color=colour, label=stage)
        bottom_N = bottom_N + height_N  # not in place: the shape holds the array
    finish(axes, "seconds a stage", "iteration", legend_columns=3)
    return to_png(figure)


def histogram_plot(values: Sequence[int], title: str, x_label: str) -> bytes:
    """Draws how often each value, or each range of values, occurs."""
    figure, axes = new_figure(5.6, 3.0)
    low, high = min(values), max(values)
    bins = [low - 0.5 + i for i in range(high - low + 2)] if high - low < 40 else 30
    axes.hist(values, bins=bins, color=SAMPLED, rwidth=0.9)
    finish(axes, title, x_label)
    return to_png(figure)


def bars_plot(values: Mapping[str, float], title: str, spans: Mapping[str, tuple[float, float]] | None = None) -> bytes:
    """Draws a bar for each name, the first on top; `spans` adds a line from the lowest to the highest value to each."""
    figure, axes = new_figure(5.6, 0.9 + 0.28 * len(values))
    names = list(values)[::-1]
    axes.barh([plain_label(name) for name in names], [values[name] for name in names], color=SAMPLED, height=0.7)
    for position, name in enumerate(names):
        if spans:
            axes.plot(spans[name], (position, position), color=GREEDY, linewidth=2)
    finish(axes, title, "", horizontal=True)
    return to_png(figure)


def _mark_phases(axes: "Axes", iterations: Sequence[IterationFigures], offset: float) -> None:
    """Draws a vertical line at the beginning of each phase of the run after the first.

    Args:
        offset: Distance of the line from the first iteration of the phase.
    """
    for first in phase_starts(iterations):
        axes.axvline(first + offset, color=MUTED, linewidth=1.0, linestyle=":", zorder=1)


def _held_out(axes: "Axes", iterations: Sequence[IterationFigures], share: Callable[[Measurement], Interval]) -> None:
    for mode, colour in MODE_COLOURS.items():
        measured = [(item.number, item.sampled if mode == "sampled" else item.greedy) for item in iterations]
        band(axes, [(number, share(figures)) for number, figures in measured if figures], colour, f"held-out, {mode}")


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
        dots = marker(points)
        axes.plot(numbers, values, style, color=colour, linewidth=1.8, label=label, marker=dots, markersize=4)
