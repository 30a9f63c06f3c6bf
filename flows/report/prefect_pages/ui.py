"""Shows a run in Prefect's interface.

Each key belongs to one page of one run, so the versions under a key are the history of the run.
"""

import base64

from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.orchestration.artifact_keys import slug
from flows.orchestration.shown_artifacts import ShownArtifacts
from flows.report import batch_picture
from flows.report.before_after import find_before_after
from flows.report.example_group import find_example_group
from flows.report.figures import IterationFigures, iteration_figures
from flows.report.plots import (
    accuracy_plot,
    health_plot,
    makes_statements,
    reward_plot,
    seconds_plot,
    statements_plot,
    suites_plot,
)
from flows.report.prefect_pages import ui_text
from flows.report.study.study import pictures, read_run_study
from flows.report.suites import curves

_SMALL_DPI = 70
"""Low, because Prefect stores pictures in its database and prints the data URL of a picture below it."""


def show_in_prefect(record: RunRecord, store: Store, *, slow: bool = True, link: str | None = None) -> None:
    """Creates new versions of a run's pages: RUN-summary, RUN-iterations, RUN-seconds, RUN-store and the slow ones.

    Call it in a flow, outside tasks, because a cached task does not run.

    Args:
        record: The run so far.
        store: The run's store.
        slow: Whether to update the slow pages, too: RUN-completions, RUN-derivations, RUN-plots, RUN-accuracy and
            RUN-batch.
        link: The profile's `store_link`: a web address with `{key}`.
    """
    run = slug(record.layout.run)
    figures = [iteration_figures(item) for item in record.iterations]
    title = ui_text.headline(figures)
    with ShownArtifacts() as shown:
        shown.markdown(f"{run}-summary", ui_text.summary_page(record, store), title)
        shown.table(f"{run}-iterations", ui_text.iteration_rows(figures), title)
        shown.table(f"{run}-seconds", ui_text.seconds_rows(figures), "Seconds of each stage")
        shown.markdown(f"{run}-store", ui_text.store_page(record, store, link), "Where the artifacts are stored")
        if slow:
            _show_completions(shown, record, store, run)
            if pair := find_before_after(record, store):
                description = "One puzzle before and after GRPO, with a verdict on each statement"
                shown.markdown(f"{run}-derivations", ui_text.before_after_page(pair), description)
            _show_pictures(shown, record, store, figures, run, title, ui_text.pictures_note(record, store, link))


def _show_completions(shown: ShownArtifacts, record: RunRecord, store: Store, run: str) -> None:
    graded = [item for item in record.iterations if item.kept("sample", "grade")]
    if graded and (example := find_example_group(graded[-1], record.layout, store)):
        description = f"Best, median and worst completion of one puzzle of iteration {example.iteration}"
        shown.markdown(f"{run}-completions", ui_text.completions_page(example), description)


def _show_pictures(
    shown: ShownArtifacts,
    record: RunRecord,
    store: Store,
    figures: list[IterationFigures],
    run: str,
    title: str,
    note: str,
) -> None:
    accuracy = accuracy_plot(figures, dpi=_SMALL_DPI)
    drawn = {
        "accuracy": accuracy,
        "reward": reward_plot(figures, dpi=_SMALL_DPI),
        **({"statements": statements_plot(figures, dpi=_SMALL_DPI)} if makes_statements(figures) else {}),
        "length, entropy, clip fraction, sampler-trainer gap, KL": health_plot(figures, dpi=_SMALL_DPI),
        "seconds of each stage": seconds_plot(figures, dpi=_SMALL_DPI),
    }
    if record.suites:
        drawn["accuracy on each suite"] = suites_plot(curves(record), dpi=_SMALL_DPI)
    if "after" in record.evaluations:  # the tables of all iterations are read once, at the end
        study = pictures([read_run_study(record, store)], dpi=_SMALL_DPI)
        drawn |= {name.removesuffix(".png"): png for name, png in study.items()}
    shown.markdown(f"{run}-plots", ui_text.plots_page(drawn, note), title)
    shown.image(f"{run}-accuracy", f"data:image/png;base64,{base64.b64encode(accuracy).decode()}", title)
    packed = [item for item in record.iterations if item.kept("pack")]
    if packed and (batch := batch_picture.read_batch(packed[-1], record.layout, store)):
        number = packed[-1].number
        shown.markdown(
            f"{run}-batch", ui_text.batch_page(number, batch, note), f"The packed batch of iteration {number}"
        )
