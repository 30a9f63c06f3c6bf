"""A comparison of recipes on one batch of rollouts, as a page and as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from artifacts.store import Store
from artifacts.sums import write_files
from flows.page import document, escape, picture, table
from flows.plots import bars_plot
from flows.summary import interval_text
from stages.statistics import Interval

Rows = Mapping[str, Mapping[str, Any]]
"""Figures by recipe (see `flows.compare`)."""

SHOWN = {
    "taken": "s",
    "reward": ".3f",
    "uniform_fraction": ".1%",
    "updates": "d",
    "skipped": "d",
    "learning_rate": ".1e",
    "loss": ".4f",
    "policy_loss": ".4f",
    "kl": ".4f",
    "kl_penalty": ".4f",
    "entropy": ".3f",
    "grad_norm": ".3f",
    "ratio_mean": ".4f",
    "ratio_max": ".2f",
    "clip_low_fraction": ".2%",
    "clip_high_fraction": ".2%",
    "sampler_gap_mean": ".4f",
    "sampler_ess": ".3f",
    "held_out_sampled": "interval",
    "held_out_greedy": "interval",
}
"""The figures of a recipe, with the form of each; an `interval` has its bounds under `_low` and `_high`."""
_DRAWN = ("held_out_sampled", "grad_norm", "ratio_max", "entropy")
_NOTE = (
    "sections: grade, pack and finetune are the recipe's, which was made for the run's model and completion length. "
    "algorithm: the recipe was made for another scale; advantages, loss, reference and what becomes of groups without "
    "a signal are its own, while rewards, learning rate, optimizer, number of updates and lengths are the run's. "
    "Held-out accuracy is a mean over puzzles with its 95% interval."
)


def write_report(store: Store, key: str, title: str, rows: Rows) -> str:
    """Writes page and figures under `key`, and returns the page's address.

    Args:
        title: What was compared.
        rows: Figures by recipe.
    """
    drawn = {name: png for name in _DRAWN if (png := _bars(rows, name))}
    body = [
        f'<header><span class="kicker">Deerstalker &middot; comparison</span><h1>{escape(title)}</h1>'
        "<p>The same rollouts, graded, packed and learned from under each recipe.</p></header>",
        f'<div class="panel long">{table(["", *rows], text_rows(rows))}</div>',
        f'<p class="note">{escape(_NOTE)}</p>',
        '<div class="plots">' + "".join(picture(png, name) for name, png in drawn.items()) + "</div>",
    ]
    if told := setting_rows(rows):
        body += ["<h2>What differs from the run</h2>", f'<div class="panel long">{table(["", *rows], told)}</div>']
    files = {
        "report.html": document(title, body).encode(),
        "report.json": (json.dumps(rows, indent=2) + "\n").encode(),
        **{f"{name}.png": png for name, png in drawn.items()},
    }
    write_files(store, key, files)
    return f"{store.url}/{key}/report.html"


def text_rows(rows: Rows) -> list[list[str]]:
    """A row a figure, a column a recipe; what was not measured is empty, and left out where no recipe has it."""
    found = [[name, *(_text(row, name, form) for row in rows.values())] for name, form in SHOWN.items()]
    return [cells for cells in found if any(cells[1:])]


def setting_rows(rows: Rows) -> list[list[str]]:
    """A row a setting in which a recipe differs from the run; empty where it does not."""
    settings = dict.fromkeys(setting for row in rows.values() for setting in row["laid_over"])
    return [
        [
            setting,
            *(json.dumps(row["laid_over"][setting]) if setting in row["laid_over"] else "" for row in rows.values()),
        ]
        for setting in settings
    ]


def _text(row: Mapping[str, Any], name: str, form: str) -> str:
    if row[name] is None:
        return ""
    if form == "interval":
        return interval_text(Interval(row[name], row[f"{name}_low"], row[f"{name}_high"]))
    return format(row[name], form)


def _bars(rows: Rows, name: str) -> bytes | None:
    """A bar a recipe that has the figure, with its interval where it has one; None where no recipe has it."""
    known = {recipe: row for recipe, row in rows.items() if row[name] is not None}
    if not known:
        return None
    spans = {recipe: (row[f"{name}_low"], row[f"{name}_high"]) for recipe, row in known.items() if f"{name}_low" in row}
    return bars_plot({recipe: row[name] for recipe, row in known.items()}, name, spans or None)
