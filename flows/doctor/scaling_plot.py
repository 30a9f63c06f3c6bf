"""The plot of `deerstalker plan`: seconds of an iteration by number of GPUs, with the term that limits each."""

from flows.plan.plan import Plan
from flows.report.pictures.png import GREEDY, INK, MUTED, SAMPLED, finish, new_figure, to_png

_PARTS = (("sample", SAMPLED), ("train", GREEDY), ("save", MUTED))


def scaling_plot(made: Plan, recipe: str) -> bytes:
    """Returns a PNG: stacked seconds of sampling, training and saving, as bars over 1 to 64 GPUs of the plan's kind.

    The label of each bar is the name of the term that takes longest, or `memory` if nothing fits.

    Args:
        recipe: Name of the recipe, for the title.
    """
    figure, axes = new_figure(5.6, 3.6)
    places = range(len(made.scaling))
    bottom = [0.0] * len(made.scaling)
    for name, colour in _PARTS:
        height = [0.0 if layout is None else getattr(layout.times, name) for _, layout in made.scaling]
        axes.bar(places, height, bottom=bottom, color=colour, width=0.7, label=name)
        bottom = [low + part for low, part in zip(bottom, height, strict=True)]
    for place, top, (_, layout) in zip(places, bottom, made.scaling, strict=True):
        limit = "memory" if layout is None else layout.times.limit.replace(" of ", "\nof ")
        axes.text(place, top + 0.01 * max(bottom), limit, ha="center", va="bottom", fontsize=7, color=INK)
    finish(axes, f"{recipe}: seconds of an iteration", f"{made.cluster.gpu.name} GPUs", legend_columns=3)
    axes.set_xticks(list(places), [str(cluster.count) for cluster, _ in made.scaling])
    return to_png(figure)
