"""The registry of metrics: one line shows a figure in every view."""

import dataclasses
import json
from typing import Any

import pytest

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.compare.comparison import comparison_figures
from flows.compare.comparison_report import text_rows, write_report
from flows.lookup.history import RunRecord, read_run
from flows.report import measures, metrics
from flows.report.figures import iteration_figures, plotted, terminal_columns
from flows.report.html.run_report import PAGE, report_files
from flows.report.measures import MEASURES
from flows.report.metric_names import before_after_metrics, iteration_metrics
from flows.report.metrics import INTERVAL, METRICS, Metric, Presence
from flows.report.pictures.plots import health_plot
from flows.report.prefect_pages.ui_text import iteration_rows
from flows.report.run_view import RunView
from flows.report.summary import measure_rows, summary
from flows.report.terminal.live import table_header, table_row
from stages.statistics.estimates import Interval

SURPRISE = Metric(
    "surprise",
    "mean surprise",
    lambda record: record.facts("grade").get("surprise/mean"),
    unit="bits",
    column="surprise",
    terminal=".2f",
    page=".1f",
    prefect=3,
    summary=True,
    tracker="completions/surprise",
    compare=".4f",
    plotted=True,
    presence=Presence.WHERE_KNOWN,
)


@pytest.fixture
def surprised(made: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """The made run, whose grades also store a figure that the registry has one more line for."""
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, SURPRISE))
    record = read_run(made[0], "made")
    for item in record.iterations[1:]:
        item.manifests["grade"].facts["surprise/mean"] = 12.34567 + item.number
    return record


def test_a_line_of_the_registry_shows_a_metric_in_every_view(
    made: tuple[Store, RunLayout], surprised: RunRecord
) -> None:
    store, _ = made
    figures = [iteration_figures(item) for item in surprised.iterations]
    columns = terminal_columns(figures)
    assert table_header(columns).split()[9] == "surprise"
    assert table_row(figures[1], columns).split()[9] == "13.35"
    assert table_row(figures[0], columns).split()[9] == "-"
    page = report_files(RunView(surprised, store))[PAGE].decode()
    assert "<th>gap</th><th>surprise</th><th>lr</th>" in page and "<td>13.3</td>" in page and "<td>16.3</td>" in page
    assert [row["surprise"] for row in iteration_rows(figures)] == [None, 13.346, 14.346, 15.346, 16.346]
    assert summary(surprised, store)["iterations"][1]["surprise"] == 13.34567
    assert iteration_metrics(surprised.iterations[1])["completions/surprise"] == 13.34567
    assert "completions/surprise" not in iteration_metrics(surprised.iterations[0])
    manifests = surprised.iterations[1].manifests
    compared = comparison_figures(*(manifests[stage] for stage in ("grade", "pack", "finetune", "evaluate")))
    rows = {"own": {"taken": "sections", "laid_over": {}, **compared}}
    assert ["surprise", "13.3457"] in text_rows(rows)
    pages = Store.open("memory://comparison")
    write_report(pages, "page", "made", rows)
    assert b"<td>surprise</td><td>13.3457</td>" in pages.read_bytes("page/report.html")


def test_the_metrics_of_a_loss_of_ones_own_are_in_every_view(made: tuple[Store, RunLayout]) -> None:
    """An iteration without steps has none. One of them has the name of a figure of every run, which stays beside it."""
    record = read_run(made[0], "made")
    entropies = [row["entropy"] for row in iteration_rows([iteration_figures(item) for item in record.iterations])]
    for item in record.iterations[1:]:
        (step,) = item.steps
        owns = ({"moved": item.number, "entropy": 9.0}, {"moved": item.number + 0.5, "entropy": 9.0})
        item.manifests["finetune"].facts["steps"] = [{**step, "own": own} for own in owns]
    figures = [iteration_figures(item) for item in record.iterations]
    expected = [None, *(item.number + 0.25 for item in record.iterations[1:])]
    column = table_header(terminal_columns(figures)).split().index("loss/moved")
    cells = [table_row(item, terminal_columns(figures)).split()[column] for item in figures]
    assert cells == ["-", *(f"{item.number + 0.25:.4g}" for item in record.iterations[1:])]
    assert "<th>loss/moved</th>" in report_files(RunView(record, made[0]))[PAGE].decode()
    rows = iteration_rows(figures)
    assert [row["loss/moved"] for row in rows] == expected
    assert [row["loss/entropy"] for row in rows] == [None, *[9.0] * 4] and entropies[1] is not None
    assert [row["entropy"] for row in rows] == entropies
    assert [metric.title for metric in plotted(figures)][-2:] == ["loss/moved", "loss/entropy"]
    assert [row["own"].get("moved") for row in summary(record, made[0])["iterations"]] == expected
    assert iteration_metrics(record.iterations[2])["loss/moved"] == expected[2]


def test_a_metric_that_is_plotted_has_a_panel(surprised: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [iteration_figures(item) for item in surprised.iterations]
    with_panel = health_plot(figures)
    monkeypatch.setattr(metrics, "METRICS", METRICS)
    without = health_plot(figures)
    height, lower = (int.from_bytes(png[20:24]) for png in (with_panel, without))
    assert height * 2 == lower * 3, "three rows of two panels, not two"


def test_a_column_that_is_shown_where_known_is_left_out_where_nothing_is(
    made: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, SURPRISE))
    record = read_run(made[0], "made")
    assert not any("surprise" in row for row in iteration_rows([iteration_figures(item) for item in record.iterations]))
    assert "surprise</th>" not in report_files(RunView(record, made[0]))[PAGE].decode()


@pytest.mark.parametrize("key", ["masked_completions", "overlong_completions"])
def test_completions_that_are_left_out_of_training_are_counted_in_every_view(
    made: tuple[Store, RunLayout], key: str
) -> None:
    name = key.removesuffix("_completions")
    record = read_run(made[0], "made")
    for item in record.iterations[1:]:
        item.manifests["pack"].facts[key] = 7 * (item.number == 2)
    figures = [iteration_figures(item) for item in record.iterations]
    column = table_header(terminal_columns(figures)).split().index(name)
    assert table_row(figures[2], terminal_columns(figures)).split()[column] == "7"
    assert f"<th>{name}</th>" in report_files(RunView(record, made[0]))[PAGE].decode()
    assert [row[name] for row in iteration_rows(figures)][1:] == [0, 7, 0, 0]
    assert [row[key] for row in summary(record, made[0])["iterations"]] == [0, 0, 7, 0, 0]
    assert iteration_metrics(record.iterations[2])[f"completions/{name}"] == 7


def test_a_line_of_the_measures_is_a_row_and_a_tracker_name(
    made: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracy = dataclasses.replace(MEASURES[0], key="certainty", title="certainty", tracker="certainty")
    monkeypatch.setattr(measures, "MEASURES", (*MEASURES, accuracy))
    record = read_run(made[0], "made")
    for manifest in record.evaluations.values():
        for mode in ("sampled", "greedy"):
            manifest.facts[mode]["certainty"] = {"mean": 0.5, "low": 0.25, "high": 0.75}
    rows = {name: cells for name, *cells in measure_rows([manifest.facts for manifest in record.evaluations.values()])}
    assert rows["certainty, sampled"] == rows["certainty, greedy"] == ["50.0% (25.0 to 75.0)"] * 2
    tracked = before_after_metrics(record.evaluations)
    assert [tracked[f"test/after/greedy/certainty{end}"] for end in ("", "_low", "_high")] == [0.5, 0.25, 0.75]


def test_keys_and_names_are_unique() -> None:
    for names in (
        [item.key for item in METRICS],
        [item.tracker for item in METRICS if item.tracker],
        [item.column for item in METRICS if item.column],
        [item.compared_as for item in METRICS if item.compare],
        [item.key for item in MEASURES],
    ):
        assert len(set(names)) == len(names)
    headed = [item for item in METRICS if item.terminal or item.page or item.prefect is not None]
    assert all(item.column for item in headed), "a table has a heading for each column"


def test_only_evaluations_have_intervals(made: tuple[Store, RunLayout]) -> None:
    """A format of an interval belongs to a metric with an interval."""
    record = read_run(made[0], "made")
    values = {item.key: item.read(record.iterations[1]) for item in METRICS}
    for item in METRICS:
        assert isinstance(values[item.key], Interval) == (INTERVAL in (item.page, item.compare)), item.key


def test_a_comparison_of_unmeasured_modes_has_no_numbers(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    parts = ("grades", "batch", "checkpoint", "report")
    grades, batch, checkpoint, report = (Artifact.at(store, layout.iteration(2, part)).manifest for part in parts)
    facts: dict[str, Any] = {**report.facts, "greedy": None}
    figures = comparison_figures(grades, batch, checkpoint, report.model_copy(update={"facts": facts}))
    assert [figures[f"held_out_greedy{end}"] for end in ("", "_low", "_high")] == [None] * 3
    assert figures["held_out_sampled_low"] == report.facts["sampled"]["accuracy"]["low"]
    assert (figures["updates"], figures["skipped"]) == (1, None)
    json.dumps(figures, allow_nan=False)
