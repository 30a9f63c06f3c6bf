"""A comparison of recipes on one batch of rollouts, as a page and as JSON."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from artifacts.store import Store
from artifacts.sums import write_files
from flows.page import document, picture, table
from flows.plots import bars_plot

SHOWN = {
    "reward": ".3f",
    "uniform_fraction": ".1%",
    "updates": "d",
    "learning_rate": ".1e",
    "policy_loss": ".4f",
    "entropy": ".3f",
    "grad_norm": ".3f",
    "ratio_mean": ".4f",
    "ratio_max": ".2f",
    "clip_low_fraction": ".2%",
    "clip_high_fraction": ".2%",
    "sampler_gap_mean": ".4f",
    "held_out_sampled": ".1%",
    "held_out_greedy": ".1%",
}
"""The figures of a recipe, with the form of each."""
_DRAWN = ("held_out_sampled", "grad_norm", "ratio_max", "entropy")


def write_report(store: Store, key: str, title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Writes page and figures under `key`, and returns the page's address.

    Args:
        title: What was compared.
        rows: Figures by recipe (see `flows.compare`).
    """
    drawn = {name: bars_plot({recipe: row[name] or 0.0 for recipe, row in rows.items()}, name) for name in _DRAWN}
    body = [
        f'<header><span class="kicker">Deerstalker &middot; comparison</span><h1>{escape(title)}</h1>'
        "<p>The same rollouts, graded, packed and learned from under each recipe.</p></header>",
        f'<div class="panel long">{table(["", *rows], text_rows(rows))}</div>',
        '<div class="plots">' + "".join(picture(png, name) for name, png in drawn.items()) + "</div>",
    ]
    files = {
        "report.html": document(title, body).encode(),
        "report.json": (json.dumps(rows, indent=2) + "\n").encode(),
        **{f"{name}.png": png for name, png in drawn.items()},
    }
    write_files(store, key, files)
    return f"{store.url}/{key}/report.html"


def text_rows(rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row a figure, a column a recipe; what was not measured is empty."""
    return [
        [name, *("" if row[name] is None else format(row[name], form) for row in rows.values())]
        for name, form in SHOWN.items()
    ]
