"""Shows a run in Prefect's interface.

Each key belongs to one page of one run, so the versions under a key are the history of the run.
"""

from typing import TYPE_CHECKING

from flows.orchestration.artifact_keys import slug
from flows.orchestration.shown_artifacts import ShownArtifacts
from flows.report.pictures.png import smaller
from flows.report.prefect_pages import ui_text
from flows.report.text.markdown import data_url

if TYPE_CHECKING:
    from flows.report.run_view import RunView

_SHARE = 0.47
"""Factor for the size of pictures, because Prefect stores them in its database and prints their data URLs."""

_WORDS = {
    "exact.png": "all answers right",
    "health.png": "length, entropy, clip fraction, sampler-trainer gap, KL",
    "seconds.png": "seconds of each stage",
    "suites.png": "accuracy on each suite",
}
"""Descriptions of plots by file name, where the name alone is unclear."""


TABLE_ROWS = 50
"""Rows of the tables, the newest iterations: each version has all of them. The report has every iteration."""


def show_in_prefect(view: "RunView", *, slow: bool = True, link: str | None = None) -> None:
    """Creates new versions of a run's pages: RUN-summary, RUN-iterations, RUN-seconds, RUN-store and the slow ones.

    Call it in a flow, outside tasks, because a cached task does not run.

    Args:
        view: The run so far.
        slow: Whether to update the slow pages, too: RUN-completions, RUN-derivations, RUN-plots, RUN-accuracy and
            RUN-batch.
        link: The profile's `store_link`: a web address with `{key}`.
    """
    record, store, run = view.record, view.store, slug(view.record.layout.run)
    title, newest = ui_text.headline(view.figures), view.figures[-TABLE_ROWS:]
    left_out = len(view.figures) - len(newest)
    note = f"; the report has the {left_out} before them" if left_out else ""
    with ShownArtifacts() as shown:
        shown.markdown(f"{run}-summary", ui_text.summary_page(record, store), title)
        shown.table(f"{run}-iterations", ui_text.iteration_rows(newest), title + note)
        shown.table(f"{run}-seconds", ui_text.seconds_rows(newest), f"Seconds of each stage{note}")
        shown.markdown(f"{run}-store", ui_text.store_page(record, store, link), "Where the artifacts are stored")
        if slow:
            _show_completions(shown, view, run)
            _show_pictures(shown, view, run, title, ui_text.pictures_note(record, store, link))


def _show_completions(shown: ShownArtifacts, view: "RunView", run: str) -> None:
    if view.example:
        description = f"Best, median and worst completion of one puzzle of iteration {view.example.iteration}"
        shown.markdown(f"{run}-completions", ui_text.completions_page(view.example), description)
    if view.before_after:
        description = "One puzzle before and after GRPO, with a verdict on each statement"
        shown.markdown(f"{run}-derivations", ui_text.before_after_page(view.before_after), description)


def _show_pictures(shown: ShownArtifacts, view: "RunView", run: str, title: str, note: str) -> None:
    # The study reads the tables of all iterations, so it is shown only at the end.
    plots = {**view.plots, **(view.study_plots if "after" in view.record.evaluations else {})}
    drawn = {_WORDS.get(name, name.removesuffix(".png")): smaller(png, _SHARE) for name, png in plots.items()}
    if drawn:
        shown.markdown(f"{run}-plots", ui_text.plots_page(drawn, note), title)
    if "accuracy" in drawn:
        shown.image(f"{run}-accuracy", data_url(drawn["accuracy"]), title)
    if view.batch:
        number, batch = view.batch
        picture = smaller(view.batch_picture, _SHARE) if view.batch_picture else None
        description = f"The packed batch of iteration {number}"
        shown.markdown(f"{run}-batch", ui_text.batch_page(number, batch, picture, note), description)
