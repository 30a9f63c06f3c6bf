"""Draws the timeline of an iteration: a bar for each stage, and below them when engine or trainer computes."""

from typing import TYPE_CHECKING

from flows.report.pictures.png import CONTRADICTED, GRID, INK, MUTED, SAMPLED, blank_figure, to_png
from flows.report.timeline import Bar, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"engine": SAMPLED, "trainer": "#1d4ed8", "loading": "#c2410c", "saving": "#ca8a04", "store": "#ca8a04"}
_WORK = "#cbd5e1"
_KINDS = {
    "engine computes": SAMPLED,
    "trainer computes": "#1d4ed8",
    "starts or loads": "#c2410c",
    "saves, or waits for the store": "#ca8a04",
    "other work": _WORK,
}


def timeline_picture(line: Timeline) -> bytes:
    """Draws a timeline as PNG. A thin line leads from the last input of a stage to its beginning."""
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(bar.name for bar in line.bars))
    figure = blank_figure(8.4, 1.5 + 0.27 * (len(names) + 1.5))
    axes = figure.subplots()
    for bar in line.bars:
        _draw(axes, bar, names.index(bar.name), line)
    below = len(names) + 0.5
    axes.broken_barh([(0, line.length_s)], (below - 0.36, 0.72), facecolors=GRID)
    axes.broken_barh([(a, b - a) for a, b in line.computing], (below - 0.36, 0.72), facecolors=INK)
    share = f"  {line.shares()['computes']:.0%}"
    axes.text(line.length_s, below, share, fontsize=9, color=INK, fontweight="bold", va="center")
    labels = [name.replace("_", " ") for name in names]
    axes.set_yticks([*range(len(names)), below], [*labels, "engine or trainer\ncomputes"])
    axes.set_ylim(below + 0.7, -0.7)
    end = max(line.length_s, *(bar.span[1] for bar in line.bars))
    axes.set_xlim(0, 1.08 * end)
    if end > line.length_s:
        axes.axvline(line.length_s, color=MUTED, linewidth=1.0, linestyle=":", zorder=1)
    axes.set_xlabel(f"seconds of iteration {line.iteration}", fontsize=9, color=MUTED)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=MUTED, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in _KINDS.items()]
    figure.legend(
        handles=patches, loc="outside upper right", ncols=len(patches), fontsize=8, frameon=False, labelcolor=INK
    )
    return to_png(figure)


def _draw(axes: "Axes", bar: Bar, row: int, line: Timeline) -> None:
    begin, end = max(0.0, bar.span[0]), bar.span[1]
    if bar.ready and begin - max(0.0, bar.ready[1]) > 0:
        axes.plot((max(0.0, bar.ready[1]), begin), (row, row), color=CONTRADICTED, linewidth=1.3, zorder=1)
    axes.broken_barh([(begin, end - begin)], (row - 0.36, 0.72), facecolors=_WORK)
    for activity in ("store", "saving", "loading", "engine", "trainer"):  # engine and trainer are drawn last
        spans = [(max(0.0, first), last - max(0.0, first)) for first, last in bar.of(activity) if last > 0]
        axes.broken_barh(spans, (row - 0.36, 0.72), facecolors=_COLOURS[activity])
    other = "" if bar.iteration == line.iteration else f"of iteration {bar.iteration}, "
    axes.text(end, row, f"  {other}{bar.span[1] - bar.span[0]:.1f} s", fontsize=7.5, color=MUTED, va="center")
