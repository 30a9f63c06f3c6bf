"""Sets of several environments: figures of each, its change over a run, and the heat map of the report."""

import re

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Report
from artifacts.schemas import PUZZLES, RESULTS, TableSchema
from artifacts.store.store import Store
from flows.lookup.history import RunRecord, read_run
from flows.report.html.run_report import PAGE, report_files
from flows.report.run_view import RunView
from flows.report.summary import task_rows
from flows.report.tasks import TaskTable, task_tables
from stages.statistics.records import Measurement, Measurements, ReportFigures
from stages.statistics.totals import totals, totals_by_task
from tests.support.made_run import make_run


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Store]:
    """A run with a suite of two environments: three of its eight validation puzzles count as zebra puzzles."""
    store = Store.open(str(tmp_path_factory.mktemp("tasks") / "store"))
    layout = make_run(store, iterations=2)
    record = read_run(store, layout.run)
    own = Artifact.at(store, record.iterations[0].manifests["evaluate"].inputs["puzzles"]["key"])
    val = own.read_table("val.parquet", PUZZLES).with_row_index()
    renamed = pl.when(pl.col("index") < 3).then(pl.lit("zebra")).otherwise(pl.col("environment"))
    two = val.with_columns(environment=renamed).drop("index")
    made = ArtifactAddress(store, "puzzles/set-two", Puzzles).attempt(Identity.of("prepare", 1, {"two": True}))
    made.write_table("test.parquet", two, PUZZLES)
    puzzles = made.publish({})
    for number in range(3):
        results = Artifact.at(store, layout.iteration(number, "report")).read_table("results.parquet", RESULTS)
        attempt = ArtifactAddress(store, layout.suite("two", number), Report).attempt(
            Identity.of("evaluate", 1, {"n": number}, puzzles=puzzles)
        )
        attempt.write_table("results.parquet", results, RESULTS)
        measured, tasks = totals(results), totals_by_task(results, two)
        figures = ReportFigures(
            puzzles=8, split="test", grader="strict", sampled=measured.sampled, greedy=measured.greedy, tasks=tasks
        )
        attempt.publish(figures.as_json(), puzzles=puzzles)
    return read_run(store, layout.run), store


def scores(record: tuple[RunRecord, Store], number: int, task: str) -> dict[str, float]:
    """Mean sampled accuracy of each puzzle of a task, computed anew from the tables."""
    found, store = record
    puzzles = Artifact.at(store, "puzzles/set-two").read_table("test.parquet", PUZZLES)
    own = puzzles.filter(pl.col("environment") == task)["prompt_id"].to_list()
    results = Artifact.at(store, found.layout.suite("two", number)).read_table("results.parquet", RESULTS)
    rows = results.filter((pl.col("mode") == "sampled") & pl.col("prompt_id").is_in(own))
    return dict(rows.group_by("prompt_id").agg(pl.col("accuracy").mean()).iter_rows())


def table(record: tuple[RunRecord, Store]) -> TaskTable:
    return next(item for item in task_tables(*record) if item.mode == "sampled")


def test_each_environment_has_its_own_figures(record: tuple[RunRecord, Store]) -> None:
    sampled = table(record)
    assert (sampled.suite, sampled.iterations) == ("two", [0, 1, 2])
    assert [row.task for row in sampled.rows] == ["temporal_clue", "zebra"]
    for row, count in zip(sampled.rows, (5, 3), strict=True):
        for number, accuracy in zip(sampled.iterations, row.accuracies, strict=True):
            own = scores(record, number, row.task)
            assert accuracy is not None and len(own) == count
            assert accuracy.mean == pytest.approx(sum(own.values()) / count)
            assert accuracy.low < accuracy.mean < accuracy.high


def test_a_change_is_paired_puzzle_by_puzzle(record: tuple[RunRecord, Store]) -> None:
    for row in table(record).rows:
        first, last = (scores(record, number, row.task) for number in (0, 2))
        assert row.change is not None
        assert row.change.mean == pytest.approx(sum(last[name] - first[name] for name in first) / len(first))


def test_the_report_has_a_heat_map_of_tasks(record: tuple[RunRecord, Store]) -> None:
    page = report_files(RunView(*record))[PAGE].decode()
    assert "<h2>Tasks</h2>" in page and "<h3>two, sampled</h3>" in page
    cells = re.findall(r'<td title="([^"]+)" style="background: rgb\((\d+), \d+, \d+\)">(\d+)</td>', page)
    assert len(cells) == 2 * 2 * 3  # modes, tasks, checkpoints
    shades = sorted((int(percent), int(red)) for _, red, percent in cells)
    assert [red for _, red in shades] == sorted((red for _, red in shades), reverse=True), "darker is more"
    assert cells[0][0].startswith(f"{cells[0][2]}.") or abs(float(cells[0][0].split("%")[0]) - int(cells[0][2])) <= 0.5


def test_a_run_on_one_environment_has_no_such_section(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    assert task_tables(record, store) == []
    assert "<h2>Tasks</h2>" not in report_files(RunView(record, store))[PAGE].decode()
    report = Artifact.at(store, layout.iteration(0, "report"))
    puzzles = Artifact.at(store, report.manifest.inputs["puzzles"]["key"]).read_table("val.parquet", PUZZLES)
    results = report.read_table("results.parquet", RESULTS)
    assert totals_by_task(results, puzzles) == {}
    figures = ReportFigures(puzzles=8, split="val", grader="strict", sampled=totals(results).sampled)
    assert "tasks" not in figures.as_json(), "reports of one environment stay as they were"


def test_tasks_are_rows_for_the_terminal(record: tuple[RunRecord, Store]) -> None:
    found, _ = record
    facts = found.suites["two"][2].facts["tasks"]
    head, rows = task_rows(facts)
    assert head == ["sampled", "greedy"] and [row[0] for row in rows] == ["temporal_clue", "zebra"]
    measured = Measurement.of(facts["zebra"]["sampled"], "here")
    assert rows[1][1].startswith(f"{measured.accuracy.mean:.1%} (")
    assert Measurements.of(facts["zebra"], "here").greedy is not None


def test_no_table_is_read_twice(record: tuple[RunRecord, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, str]] = []
    read_table = Artifact.read_table

    def noted(artifact: Artifact, name: str, schema: TableSchema) -> pl.DataFrame:
        read.append((artifact.key, name))
        return read_table(artifact, name, schema)

    monkeypatch.setattr(Artifact, "read_table", noted)
    assert task_tables(*record)
    found, _ = record
    reports = [(found.layout.suite("two", number), "results.parquet") for number in (0, 2)]
    assert sorted(read) == sorted([("puzzles/set-two", "test.parquet"), *reports])
