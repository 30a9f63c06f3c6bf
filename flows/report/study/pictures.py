"""Draws the plots of a study as PNG. Names of series are untrusted, so `plain_label` escapes them."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from flows.report.pictures.png import (
    CONTRADICTED,
    GRID,
    INK,
    MUTED,
    SAMPLED,
    band,
    blank_figure,
    finish,
    new_figure,
    new_panels,
    plain_label,
    to_png,
)
from flows.report.study.series import LearningCurve, Reliability
from stages.answering.measured import BenchmarkedModel
from stages.statistics.estimates import Interval
from stages.statistics.fits import Line, PowerLaw, PowerLawBand

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0f766e", "#c2410c", "#1d4ed8", "#7c3aed", "#a16207", "#be185d", "#4d7c0f", "#0369a1")

Fits = Mapping[str, tuple[PowerLaw, PowerLawBand | None] | None]
"""The power law of each run with its interval; None where it would be meaningless."""


def learning_plot(curves: Mapping[str, LearningCurve], fits: Fits) -> bytes:
    """Draws learning curves with their power laws and 95% intervals on logarithmic axes, and the residuals below."""
    from matplotlib.ticker import NullFormatter, PercentFormatter, StrMethodFormatter

    figure = blank_figure(5.6, 4.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for (name, curve), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        points = [
            (number, accuracy)
            for number, accuracy in zip(curve.iterations, curve.accuracy, strict=True)
            if number and accuracy.mean > 0.0
        ]
        numbers = [number for number, _ in points]
        above.scatter(numbers, [accuracy.mean for _, accuracy in points], s=10, color=colour, label=plain_label(name))
        if fitted := fits[name]:
            _draw_fit(above, below, *fitted, colour=colour)
    finish(above, "held-out accuracy, sampled", "")
    finish(below, "residuals of ln(accuracy)", "weights after iteration")
    above.set(xscale="log", yscale="log")
    percent = PercentFormatter(1.0, decimals=0)
    above.yaxis.set_major_formatter(percent)
    below.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    low, high = above.get_ylim()
    above.yaxis.set_minor_formatter(percent if high < 10.0 * low else NullFormatter())
    above.tick_params(which="minor", labelsize=8, colors=MUTED, length=0)
    below.axhline(0.0, color=GRID, linewidth=1.2, zorder=0)
    return to_png(figure)


def lengths_plot(curves: Mapping[str, LearningCurve]) -> bytes:
    """Draws the mean length of held-out answers over iterations, right and wrong ones, a panel for each run."""
    figure, panels = new_panels(len(curves))
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        for label, lengths, colour in (
            ("all answers right", curve.right_tokens, SAMPLED),
            ("others", curve.wrong_tokens, CONTRADICTED),
        ):
            known = [(n, length) for n, length in zip(curve.iterations, lengths, strict=True) if length is not None]
            if known:
                axes.plot(*zip(*known, strict=True), color=colour, linewidth=1.8, label=label)
        finish(axes, plain_label(name) if len(curves) > 1 else "tokens of a held-out answer", "weights after iteration")
    panels[0].set_ylim(0, 1.1 * panels[0].get_ylim()[1])  # of all panels; nearly equal lengths get space above
    return to_png(figure)


def difficulty_plot(groups: Mapping[str, Mapping[str, Sequence[tuple[float, Interval]]]]) -> bytes:
    """Draws accuracy with its 95% band over the sizes of puzzles, a panel for each kind of size.

    Args:
        groups: Pairs of mean size and accuracy by name of the model and by kind of size.
    """
    kinds = list(dict.fromkeys(kind for sizes in groups.values() for kind in sizes))
    figure, panels = new_panels(len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        for (name, sizes), colour in zip(groups.items(), cycle(_COLOURS), strict=False):
            band(axes, sizes.get(kind, ()), colour, plain_label(name))
        finish(axes, "accuracy, sampled", plain_label(kind), percent=True)
    return to_png(figure)


def reliability_plot(chances: Mapping[str, Sequence[Reliability]]) -> bytes:
    """Draws the chances that at least one and that all of k answers are fully correct, with 95% bands."""
    figure, axes = new_figure(5.6, 3.3)
    for (name, points), colour in zip(chances.items(), cycle(_COLOURS), strict=False):
        prefix = f"{plain_label(name)}: " if len(chances) > 1 else ""
        band(axes, [(point.samples, point.any_right) for point in points], colour, f"{prefix}one of k")
        band(axes, [(point.samples, point.all_right) for point in points], colour, f"{prefix}each of k", "--")
    finish(axes, "puzzles with all answers right", "k, number of sampled answers", percent=True)
    return to_png(figure)


def cost_plot(models: Sequence[BenchmarkedModel], line: Line | None) -> bytes:
    """Draws accuracy with 95% intervals over the cost of an answer, and the line through the frontier.

    Args:
        models: Models with a cost above 0.
        line: The line `accuracy = a + b ln(cost)`; None draws none.
    """
    from matplotlib.ticker import StrMethodFormatter

    figure, axes = new_figure(6.4, 4.2)
    costs = [model.cost_per_answer or 0.0 for model in models]
    for model, cost in zip(models, costs, strict=True):
        axes.plot((cost, cost), (model.accuracy.low, model.accuracy.high), color=GRID, linewidth=2, zorder=1)
        axes.scatter([cost], [model.accuracy.mean], s=24, color=SAMPLED, zorder=3)
        axes.annotate(
            plain_label(model.name), (cost, model.accuracy.mean), xytext=(4, 4), textcoords="offset points",
            fontsize=7, color=INK,
        )  # fmt: skip
    if line is not None:
        ends = (min(costs), max(costs))
        values = [line.at(math.log(end)) for end in ends]
        axes.plot(ends, values, color=_COLOURS[1], linewidth=1.4, linestyle="--", label="frontier, least squares")
    finish(axes, "accuracy", "cost of an answer, $", percent=True)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.margins(x=0.15)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.05), min(high, 1.05))  # the line continues beyond 0 and 1
    return to_png(figure)


def _draw_fit(above: "Axes", below: "Axes", fit: PowerLaw, interval: PowerLawBand | None, *, colour: str) -> None:
    spread = list(range(fit.first, fit.last + 1))
    above.plot(spread, [fit.at(number) for number in spread], color=colour, linewidth=1.8)
    if interval is not None:
        above.fill_between(spread, interval.low, interval.high, color=colour, alpha=0.15, linewidth=0)
    if fit.saturating.is_plausible:
        levels = [fit.saturating.at(number) for number in spread]
        above.plot(spread, levels, color=colour, linewidth=1.0, linestyle=":")
    below.scatter(fit.iterations, fit.residuals, s=8, color=colour)
