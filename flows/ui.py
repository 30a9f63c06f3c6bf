"""What a run leaves in Prefect's own user interface. Call it in a flow, outside tasks: a reused task draws nothing."""

import base64
import re
from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from artifacts.store import Store
from flows.figures import IterationFigures, iteration_figures
from flows.history import RunRecord
from flows.plots import accuracy_plot, suites_plot
from flows.suites import curves
from flows.summary import before_after_rows, solve_command

_SMALL_DPI = 70
"""The interface prints the address of a picture below it, so the picture that is its own address has to be small."""


def show_in_prefect(record: RunRecord, store: Store) -> None:
    """Creates the run's summary, iteration table and accuracy curve; each run keeps its keys, so versions line up."""
    run = slug(record.layout.run)
    iterations = [iteration_figures(iteration) for iteration in record.iterations]
    create_markdown_artifact(markdown(record, store), key=f"{run}-summary", description=record.recipe["title"])
    create_table_artifact(table_rows(iterations), key=f"{run}-iterations", description="One row an iteration")
    picture = base64.b64encode(accuracy_plot(iterations, dpi=_SMALL_DPI)).decode()
    create_image_artifact(
        f"data:image/png;base64,{picture}", key=f"{run}-accuracy", description="Held-out accuracy by iteration"
    )
    if record.suites:
        picture = base64.b64encode(suites_plot(curves(record), dpi=_SMALL_DPI)).decode()
        create_image_artifact(
            f"data:image/png;base64,{picture}", key=f"{run}-suites", description="The curve on each suite"
        )


def slug(name: str) -> str:
    """A run's name as a Prefect artifact key: lower case letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


def markdown(record: RunRecord, store: Store) -> str:
    """Before and after, where the artifacts lie, and how to run the promoted model."""
    lines = [f"## {record.layout.run}", ""]
    if record.evaluations:
        names = ["before GRPO" if when == "before" else "promoted" for when in record.evaluations]
        lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in before_after_rows(record)]
    lines += ["", f"Artifacts: `{store.url}/{record.layout.root}`"]
    lines += [f"Report: `{store.url}/{record.layout.summary}/report.html`", ""]
    return "\n".join([*lines, "```", solve_command(record, store), "```", ""])


def table_rows(iterations: Sequence[IterationFigures]) -> list[dict[str, Any]]:
    """One row an iteration, all with the same columns; JSON knows no NaN, so what is unknown is None."""
    return [
        {
            "iteration": item.number,
            "reward": _rounded(item.reward, 4),
            "train accuracy": _rounded(item.train_accuracy, 4),
            "held-out sampled": _rounded(item.sampled.accuracy.mean if item.sampled else None, 4),
            "held-out greedy": _rounded(item.greedy.accuracy.mean if item.greedy else None, 4),
            "tokens": _rounded(item.completion_tokens, 1),
            "entropy": _rounded(item.entropy, 4),
            "clipped": _rounded(item.clip_fraction, 5),
            "gap": _rounded(item.gap, 5),
            "promoted": "yes" if item.promoted else "",
            "seconds": round(item.total_s, 1),
        }
        for item in iterations
    ]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
