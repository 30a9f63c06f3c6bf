"""The report of a comparison of recipes on one batch of rollouts: an HTML page and JSON."""

import json
from collections.abc import Mapping
from typing import Any

from artifacts.documents.checksums import write_files
from artifacts.store.store import Store
from flows.report.figures import compared
from flows.report.html.page import page
from flows.report.metrics import INTERVAL, Metric, text
from flows.report.pictures.plots import bars_plot
from stages.statistics.estimates import Interval

Rows = Mapping[str, Mapping[str, Any]]
"""Figures by recipe (see `flows.compare.comparison`)."""

_DRAWN = ("held_out_sampled", "grad_norm", "ratio_max", "entropy")
"""The figures that have a bar chart."""


def write_report(store: Store, key: str, title: str, rows: Rows) -> str:
    """Writes the page, its pictures and the figures as JSON under `key`, and returns the page's address.

    Args:
        title: The run and the iteration.
        rows: Figures by recipe.
    """
    drawn = {name: png for name in _DRAWN if (png := _bars(rows, name))}
    document = page(
        "comparison.html",
        title=title,
        heading=title,
        head=["", *rows],
        rows=text_rows(rows),
        pictures=drawn,
        settings=setting_rows(rows),
    )
    files = {
        "report.html": document.encode(),
        "report.json": (json.dumps(rows, indent=2) + "\n").encode(),
        **{f"{name}.png": png for name, png in drawn.items()},
    }
    write_files(store, key, files)
    return f"{store.url}/{key}/report.html"


def text_rows(rows: Rows) -> list[list[str]]:
    """Returns table rows for `taken` and each figure: name, then a cell for each recipe. Empty rows are left out."""
    table = [["taken", *(row["taken"] or "" for row in rows.values())]]
    table += [[item.compared_as, *(_text(row, item) for row in rows.values())] for item in compared()]
    return [cells for cells in table if any(cells[1:])]


def setting_rows(rows: Rows) -> list[list[str]]:
    """Returns a row for each setting in which a recipe differs from the run; cells of the other recipes are empty."""
    settings = dict.fromkeys(setting for row in rows.values() for setting in row["laid_over"])
    return [
        [
            setting,
            *(json.dumps(row["laid_over"][setting]) if setting in row["laid_over"] else "" for row in rows.values()),
        ]
        for setting in settings
    ]


def _text(row: Mapping[str, Any], metric: Metric) -> str:
    name, value = metric.compared_as, row[metric.compared_as]
    if metric.compare == INTERVAL and value is not None:
        value = Interval(value, row[f"{name}_low"], row[f"{name}_high"])
    return text(value, metric.compare)


def _bars(rows: Rows, name: str) -> bytes | None:
    """Draws a bar for each recipe that has the figure, with its interval; None if no recipe has it."""
    measured = {recipe: row for recipe, row in rows.items() if row[name] is not None}
    if not measured:
        return None
    spans = {
        recipe: (row[f"{name}_low"], row[f"{name}_high"]) for recipe, row in measured.items() if f"{name}_low" in row
    }
    return bars_plot({recipe: row[name] for recipe, row in measured.items()}, name, spans or None)
