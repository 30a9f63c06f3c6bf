"""The phases of a run in its views, read from the records that `advance` published."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from artifacts.address import ArtifactAddress
from artifacts.reading import Artifact
from artifacts.refs import Grades, Ref, Report, Transition
from artifacts.store.store import Store
from flows.lookup.history import RunRecord, read_iteration, read_run
from flows.report.figures import iteration_figures, phase_starts, terminal_columns
from flows.report.html.run_report import PAGE, report_files
from flows.report.pictures.plots import accuracy_plot, reward_plot
from flows.report.prefect_pages.ui_text import iteration_rows, summary_page
from flows.report.run_view import RunView
from flows.report.summary import phase_rows
from flows.report.terminal.live import print_iterations
from stages.curriculum.progress import read_progress
from stages.optional.advance import AdvanceConfig, advance
from tests.support.contexts import make_context
from tests.support.made_run import make_run


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord]:
    """A run of four iterations whose first phase, named with markup, ends after two of them."""
    store = Store.open("memory://staged-report")
    layout = make_run(store)
    phase, since = 0, 1
    before: Ref[Transition] | None = None
    with make_context(store, tmp_path_factory.mktemp("scratch")) as ctx:
        for n in (1, 2, 3, 4):
            grades = Artifact.at(store, layout.iteration(n, "grades"), Grades).ref
            report = Artifact.at(store, layout.iteration(n, "report"), Report).ref
            config = AdvanceConfig(iterations=2 if phase == 0 else None, phase=phase, since=since)
            out = ArtifactAddress(store, layout.iteration(n, "transition"), Transition)
            before = advance(ctx, config, grades, report, before, iteration=n, out=out)
            phase, since = read_progress(before, store).position_after(n)
    record = read_run(store, layout.run)
    return store, replace(
        record, recipe={**record.recipe, "iterations": 4, "phases": [{"name": "<b>8K"}, {"name": "16K"}]}
    )


def test_each_phase_has_a_row_with_its_end(staged: tuple[Store, RunRecord]) -> None:
    _, record = staged
    assert phase_rows(record) == [
        ["1. <b>8K", "1 to 2", "2 iterations are done"],
        ["2. 16K", "3 to 4", "with the run"],
    ]
    assert phase_rows(replace(record, iterations=record.iterations[:2])) == [["1. <b>8K", "1 to 1", "it goes on"]]


def test_an_iteration_has_the_recipe_of_its_phase(staged: tuple[Store, RunRecord]) -> None:
    _, record = staged
    phases = [
        {"name": "8K", "iterations": 2, "sample": {"sampling": {"max_tokens": 8}}},
        {"name": "16K", "sample": {"sampling": {"max_tokens": 16}}},
    ]
    typed = replace(record, recipe={**record.recipe, "phases": phases})
    lengths = [typed.recipe_at(n).sample.sampling.max_tokens for n in (1, 2, 3, 4, 5)]
    assert lengths == [8, 8, 16, 16, 16]
    begun = replace(typed, iterations=typed.iterations[:3])  # iteration 3 has not published its transition
    assert begun.recipe_at(3).sample.sampling.max_tokens == 16


def test_iterations_have_the_number_of_their_phase(staged: tuple[Store, RunRecord]) -> None:
    store, record = staged
    figures = [iteration_figures(item) for item in record.iterations]
    assert [item.value("phase") for item in figures] == [None, 1, 1, 2, 2]
    assert phase_starts(figures) == [3]
    assert "phase" in [metric.key for metric in terminal_columns(figures)]
    console = Console(width=10_000)
    with console.capture() as capture:
        print_iterations(console, figures)
    header, *rows = capture.get().splitlines()
    place = header.split().index("phase")
    assert [row.split()[place] for row in rows] == ["-", "1", "1", "2", "2"]
    assert [row["phase"] for row in iteration_rows(figures)] == [None, 1, 1, 2, 2]
    assert read_iteration(store, record.layout, 3).facts("advance")["phase"] == 2


def test_the_curves_have_a_mark_where_a_phase_begins(staged: tuple[Store, RunRecord], tmp_path: Path) -> None:
    _, record = staged
    figures = [iteration_figures(item) for item in record.iterations]
    plain = [replace(item, values={**item.values, "phase": None}) for item in figures]
    for draw in (accuracy_plot, reward_plot):
        assert draw(figures) != draw(plain) == draw(plain)


def test_rollouts_are_drawn_at_the_weights_that_sampled_them(staged: tuple[Store, RunRecord]) -> None:
    _, record = staged
    figures = [iteration_figures(item) for item in record.iterations]
    ahead = [replace(item, values={**item.values, "iterations_behind": 1}) for item in figures]
    assert accuracy_plot(ahead) != accuracy_plot(figures)


def test_the_pages_name_the_phases_and_escape_their_names(staged: tuple[Store, RunRecord]) -> None:
    store, record = staged
    files = report_files(RunView(record, store))
    page = files[PAGE].decode()
    assert "1. &lt;b&gt;8K" in page
    assert "<b>8K" not in page
    assert "2 iterations are done" in page
    assert "`1. <b>8K`" in summary_page(record, store)
    told = json.loads(files["summary.json"])
    assert told["phases"][1] == {"name": "2. 16K", "iterations": "3 to 4", "end": "with the run"}
    assert [item["phase"] for item in told["iterations"]] == [None, 1, 1, 2, 2]
