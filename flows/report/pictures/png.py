"""The parts that all pictures share: colours, panels, axes, bands, the PNG encoder and smaller copies."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flows.report.text.visible import visible
from stages.statistics.estimates import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2937", "#6b7280", "#e5e7eb"
SAMPLED, GREEDY, CONTRADICTED = "#0f766e", "#c2410c", "#b91c1c"
DPI = 150


def to_png(figure: "Figure") -> bytes:
    """Returns a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def smaller(png: bytes, share: float) -> bytes:
    """Returns a smaller copy of a picture; `share`, from 0 to 1, multiplies its width and height."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        size = (round(image.width * share), round(image.height * share))
        image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def band(axes: "Axes", points: Sequence[tuple[float, Interval]], colour: str, label: str, style: str = "-") -> None:
    """Draws a curve of shares with their 95% intervals; nothing if there is no point."""
    if not points:
        return
    numbers, accuracy = [number for number, _ in points], [interval for _, interval in points]
    low, high = [max(0.0, a.low) for a in accuracy], [min(1.0, a.high) for a in accuracy]
    axes.fill_between(numbers, low, high, color=colour, alpha=0.13, linewidth=0)
    means = [a.mean for a in accuracy]
    axes.plot(numbers, means, style, color=colour, linewidth=2, label=label, marker=marker(points), markersize=4)


def marker(points: Sequence[object]) -> str:
    """Returns the marker of the points of a curve; empty if there are more than 40."""
    return "o" if len(points) <= 40 else ""


def blank_figure(width_in: float, height_in: float) -> "Figure":
    """Returns a figure without panels, with a layout in which nothing overlaps."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")


def new_panels(count: int) -> "tuple[Figure, list[Axes]]":
    """Returns a figure with `count` panels, at most three in a row, that share the y axis; a single panel is larger."""
    columns = min(3, count)
    rows = -(-count // columns)
    figure = blank_figure(5.6, 3.3) if count == 1 else blank_figure(3.6 * columns, 3.1 * rows)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def new_figure(width_in: float, height_in: float) -> "tuple[Figure, Axes]":
    """Returns a figure of one panel."""
    figure = blank_figure(width_in, height_in)
    return figure, figure.subplots()


def finish(
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
        axes.legend(fontsize=8, framealpha=0.8, edgecolor="none", labelcolor=INK, ncols=legend_columns)


def plain_label(name: str) -> str:
    """Returns a name as a label; dollar signs are escaped, because matplotlib reads text between two as a formula."""
    return visible(name).replace("$", r"\$")
