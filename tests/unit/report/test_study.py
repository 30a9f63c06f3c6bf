"""Figures and fits of runs and benchmarked models, and the alarm of a run."""

import io
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError
from rich.console import Console

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.schemas import PUZZLES, RESULTS
from artifacts.store.store import Store
from flows.lookup.alarms import with_alarms
from flows.lookup.history import IterationRecord, read_iteration, read_run
from flows.report.figures import iteration_figures, page_columns
from flows.report.html.run_report import PAGE as REPORT
from flows.report.html.run_report import report_files
from flows.report.metric_names import iteration_metrics
from flows.report.run_view import RunView
from flows.report.shown_run import ShownRun
from flows.report.study import series
from flows.report.study.benchmark import BenchmarkModels, read_benchmark
from flows.report.study.page import PAGE, study_files, write_study
from flows.report.study.series import (
    Answered,
    LearningCurve,
    accuracy_by_size,
    read_answers,
    read_learning_curve,
    reliability,
)
from flows.report.study.study import RunStudy, figures, frontier_sentence, pictures, read_run_study
from flows.report.summary import print_summary, summary
from flows.report.trackers import open_tracker
from flows.session.session import SHOWN_AGAIN
from stages.answering.measured import Accuracy, BenchmarkedModel, measured
from stages.context import Profile
from stages.environments import environment
from stages.environments.soundness import mean_statements, refuted_statements
from stages.environments.tables import puzzles_by_id
from stages.promotion.reward_alarm import AlarmWindow
from stages.statistics.estimates import Interval, estimate
from tests.support.alarm_run import make_alarm_run
from tests.support.json_page import check_documented
from tests.support.made_run import make_run
from tests.support.published_study import PUBLISHED_MODELS
from tests.support.sessions import made_session


@pytest.fixture(scope="module")
def derived() -> tuple[Store, RunLayout]:
    """A run whose completions derive their answers."""
    store = Store.open("memory://study")
    return store, make_run(store, run="thinking", iterations=2, derives=True)


@pytest.fixture(scope="module")
def study(derived: tuple[Store, RunLayout]) -> RunStudy:
    """That run with a learning curve that is long enough for a fit, and with an alarm."""
    store, layout = derived
    numbers = list(range(1, 31))
    scores = np.clip(0.3 * np.array(numbers) ** 0.2 * np.linspace(0.8, 1.2, 16)[:, None], 0.0, 1.0)
    accuracy = [estimate(column.tolist()) for column in scores.T]
    curve = LearningCurve(numbers, accuracy, scores, [None, *([50.0] * 29)], [60.0] * 30)
    alarm = AlarmWindow(11, 30, rise=0.2, rise_se=5.0, fall=0.1, fall_se=4.5, bar=3.4, certain=True)
    fitted = curve.power_law()
    return replace(read_run_study(read_run(store, layout.run), store), curve=curve, fit=fitted, alarms=[alarm])


def document() -> dict[str, Any]:
    """The document of a benchmark with the published models, and one without a price whose name is markup."""
    models = [model_of(model.name, model.accuracy / 100, model.cost) for model in PUBLISHED_MODELS]
    content = BenchmarkModels(puzzles="published puzzles", models=[*models, model_of("<b>$x$", 0.4, None)])
    return {**content.model_dump(mode="json"), "count": 64}


def model_of(name: str, accuracy: float, cost: float | None) -> BenchmarkedModel:
    letters = Interval(accuracy, accuracy - 0.1, 0.9)
    return BenchmarkedModel(
        name=name, kind="openai", model=name, puzzles=64, samples=1,
        gradings={"strict": Accuracy(letters=letters, all_right=letters, unread={})}, outcomes={"answered": 64},
        prompt_tokens=5.0, completion_tokens=1000.0, cost_per_answer=cost, without_usage=0, latency_s=1.0, answers="a",
    )  # fmt: skip


@pytest.mark.parametrize("change", [{"gradings": {}}, {"cost_per_answer": -1.0}, {"cost_per_answer": math.inf}])
def test_figures_that_cannot_be_drawn_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        BenchmarkedModel.model_validate({**model_of("a", 0.5, 0.1).model_dump(), **change})


def test_the_learning_curve_of_a_long_run_has_fewer_points(
    made: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = made
    monkeypatch.setattr(series, "_MOST_POINTS", 3)
    curve = read_learning_curve(read_run(store, layout.run), store)
    assert curve is not None and curve.iterations == [0, 2, 4]


def test_a_learning_curve_is_read_from_the_reports(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    curve = read_learning_curve(record, store)
    assert curve is not None and curve.iterations == [0, 1, 2, 3, 4]
    measured = [iteration_figures(item).sampled for item in record.iterations]
    assert [item.mean for item in curve.accuracy] == pytest.approx([item.accuracy.mean for item in measured if item])
    table = Artifact.at(store, layout.iteration(3, "report")).read_table("results.parquet", RESULTS)
    sampled = table.filter(pl.col("mode") == "sampled")
    lengths = {
        exact: sampled.filter(pl.col("exact") == exact)["completion_tokens"].to_list() for exact in (True, False)
    }
    assert curve.right_tokens[3] == (pytest.approx(np.mean(lengths[True])) if lengths[True] else None)
    assert curve.wrong_tokens[3] == pytest.approx(np.mean(lengths[False]))


def test_iterations_that_answered_other_puzzles_or_are_pruned_are_left_out(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    pruned = record.iterations[2].manifests["evaluate"].model_copy(update={"pruned": "2026-01-01"})
    iterations = [*record.iterations]
    iterations[2] = replace(iterations[2], manifests={**iterations[2].manifests, "evaluate": pruned})
    curve = read_learning_curve(replace(record, iterations=iterations), store)
    assert curve is not None and curve.iterations == [0, 1, 3, 4]
    assert read_learning_curve(replace(record, iterations=record.iterations[:1]), store) is None


def test_puzzles_are_grouped_by_each_size_that_varies(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    (before, promoted) = read_answers(read_run(store, layout.run), store)
    assert (before.title, promoted.title) == ("before GRPO", "promoted")
    groups = accuracy_by_size(promoted)
    assert list(groups) == ["clues"], "the board is the same in all puzzles of this run"
    ids = ["a", "b", "c", "d"]
    puzzles = pl.DataFrame({"prompt_id": ids, "num_clues": [3, 3, 5, 7], "difficulty": ['{"rooms": 2}'] * 4})
    results = pl.DataFrame({"prompt_id": ids * 2, "accuracy": [0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0]})
    by_size = accuracy_by_size(Answered("made up", results, puzzles))
    assert {kind: [(size, item.mean) for size, item in of] for kind, of in by_size.items()} == {
        "clues": [(3.0, 0.5), (5.0, 0.25), (7.0, 1.0)]
    }


def test_reliability_of_one_answer_is_its_share_and_falls_with_more(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    answered = read_answers(read_run(store, layout.run), store)[-1]
    chances = reliability(answered)
    share = answered.results["exact"].cast(pl.Float64).to_numpy().mean()
    assert [item.samples for item in chances] == [1, 2, 3, 4]
    assert chances[0].any_right.mean == chances[0].all_right.mean == pytest.approx(share)
    assert all(item.all_right.mean <= share <= item.any_right.mean for item in chances)
    single = replace(answered, results=answered.results.filter(pl.col("sample") == 0))
    assert reliability(single) == []


def test_refuted_statements_are_refuted_by_the_clues_that_are_named(derived: tuple[Store, RunLayout]) -> None:
    store, layout = derived
    before = read_answers(read_run(store, layout.run), store)[0]
    shown = refuted_statements(before.results, before.puzzles, 3)
    assert len(shown) == 3 and len({item.prompt_id for item in shown}) == 3
    known = puzzles_by_id(before.puzzles)
    solver = environment.get("temporal_clue")
    for item in shown:
        puzzle = known[item.prompt_id]
        verdicts = [found.verdict for found in solver.deductions(item.text, puzzle) or []]
        assert verdicts == ["contradicted"]
        assert item.numbers == solver.premises(item.text, puzzle)
        clues = [line.removeprefix("- ") for line in puzzle.prompt.splitlines() if line.startswith("- ")]
        assert item.clues == tuple(clues[number - 1] for number in item.numbers)
    means = mean_statements(before.results)
    assert means is not None and means["contradicted"] == before.results["contradicted"].to_numpy().mean()


def test_the_statements_of_a_benchmarked_model_are_those_of_its_answers(derived: tuple[Store, RunLayout]) -> None:
    store, layout = derived
    before = read_answers(read_run(store, layout.run), store)[0]
    columns = before.results.select("prompt_id", "sample", "text", "completion_tokens")
    told = {"outcome": "answered", "prompt_tokens": 5, "usage": "{}", "latency_s": 1.0}
    answers = columns.with_columns(pl.lit(value).alias(name) for name, value in told.items())
    model = measured(
        answers, before.puzzles, name="talker", kind="openai", model="t", key="a", price=None, tokens_per_s=None
    )
    assert model.statements is not None and model.statements == mean_statements(before.results)
    assert model.refuted == refuted_statements(before.results, before.puzzles, 3) != []
    benchmark = BenchmarkModels.model_validate({"puzzles": "x", "models": [model.model_dump(mode="json")]})
    assert benchmark.models[0].refuted == model.refuted
    page = study_files([], benchmark)[PAGE].decode()
    assert model.refuted[0].text in page and f"{model.statements['contradicted']:.2f}" in page


def test_a_study_draws_everything_for_which_there_are_data(study: RunStudy, made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    short = read_run_study(read_run(store, layout.run), store)
    assert short.fit is None, "four iterations are too few"
    assert study.fit is not None
    benchmark = BenchmarkModels.model_validate(document())
    files = study_files([study, short], benchmark)
    assert sorted(files) == [
        "cost.png", "difficulty.png", "learning.png", "lengths.png", "reliability.png", "study.html", "study.json",
    ]  # fmt: skip
    assert all(data.startswith(b"\x89PNG") for name, data in files.items() if name.endswith(".png"))
    page = files[PAGE].decode()
    assert "<b>$x$" not in page and "&lt;b&gt;$x$" in page
    assert "70.87 +5.40 ln(cost)" in page and "Without a price" in page
    assert (
        "<h2>Refuted statements</h2>" in page
        and "thinking, before GRPO" in page
        and "thinking: reward rises while" in page
    )
    told = json.loads(files["study.json"])
    assert told["runs"]["made"]["power_law"] is None
    assert told["runs"]["thinking"]["power_law"]["slope"] == study.fit[0].slope == pytest.approx(0.2)
    assert told["frontier"]["models"][0] == "Qwen 14B"
    assert sorted(pictures([], benchmark)) == ["cost.png"]
    assert figures([], None) == {"runs": {}, "frontier": None}


def test_too_few_models_with_a_price_have_no_line() -> None:
    content = document()
    content["models"] = content["models"][:2]
    benchmark = BenchmarkModels.model_validate(content)
    assert frontier_sentence(None, benchmark.models, benchmark).startswith("Fewer than three models")
    assert "cost.png" in pictures([], benchmark)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["models"].clear(), "models: List should have at least 1 item"),
        (lambda content: content["models"][0].pop("gradings"), r"models\.0\.gradings: Field required"),
        (lambda content: content["models"].append(content["models"][0]), "two models are named 'Qwen 14B'"),
    ],
)
def test_another_document_is_refused_by_its_field(tmp_path: Path, change: Any, message: str) -> None:
    content = document()
    change(content)
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match=message):
        read_benchmark(str(path))
    with pytest.raises(BadInputError, match=r"none\.json: no such file"):
        read_benchmark(str(tmp_path / "none.json"))


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    assert write_study(str(tmp_path / "new" / "study"), {PAGE: b"x"}).endswith("new/study/study.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=r"--output .*cannot be written to"):
        write_study(str(tmp_path / "file"), {PAGE: b"x"})


def test_the_alarm_is_in_every_view(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    plain = read_run(store, layout.run)
    assert plain.recipe["alarm"] == {"window": 20, "standard_errors": 3.0}
    assert plain.iterations[-1].alarm is None, "the window is not full"
    assert "alarm" not in [metric.column for metric in page_columns([iteration_figures(i) for i in plain.iterations])]
    store = Store.open("memory://diverging")
    record = read_run(store, make_alarm_run(store).run)
    ringing = [item.number for item in record.iterations if item.alarm and item.alarm.certain]
    assert ringing == [4]
    page = report_files(RunView(record, store))[REPORT].decode()
    assert "Alarm: reward rises while held-out accuracy falls: over iterations" in page
    assert page.count("<td>reward up, accuracy down</td>") == 1
    told = [item["reward_alarm"] for item in summary(record, store)["iterations"]]
    assert told == [None, None, None, None, 1.0]
    assert iteration_metrics(record.iterations[-1])["reward_alarm"] == 1.0
    written = io.StringIO()
    print_summary(record, store, Console(file=written, width=200))
    assert "alarm:    reward rises while held-out accuracy falls: over iterations 1 to 4" in written.getvalue()
    off = with_alarms(record.iterations, {**record.recipe, "alarm": None})
    assert all(item.alarm is None for item in off), "switched off"


def test_the_document_is_described(study: RunStudy) -> None:
    told = figures([study], BenchmarkModels.model_validate(document()))
    check_documented("study", {"page": "study.html", **told}, unmet={"damaged"})


def test_the_alarm_is_said_while_it_lasts(tmp_path: Path) -> None:
    store = Store.open("memory://alarm")
    layout = make_alarm_run(store)
    profile = Profile(tracker="tensorboard", tracker_folder=str(tmp_path))  # which gets every iteration
    with open_tracker(profile, store, layout.run, {}) as tracker:
        shown = ShownRun(layout, store, tracker, logging.getLogger("study"))
        said = [shown.iteration_finished(read_iteration(store, layout, n), executed=False) for n in range(5)]
    assert said[:4] == [None] * 4
    assert str(said[4]).startswith("alarm: reward rises while held-out accuracy falls: over iterations 1 to 4")


class NumbersShown:
    """Pages of a run that note which iterations they show."""

    def __init__(self) -> None:
        self.numbers = list[int]()

    def iteration_finished(self, newest: IterationRecord, *, executed: bool) -> str | None:
        self.numbers.append(newest.number)

    def finished(self) -> tuple[str, bool]:
        return "", False


@pytest.mark.parametrize(("made_again", "expected"), [(None, [3, 4]), (1, [1, 2, 3, 4])])
def test_a_run_that_goes_on_shows_its_newest_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made_again: int | None, expected: list[int]
) -> None:
    """After an iteration that is made again, none is left out: the alarm and the curves need all of them."""
    store, shown = Store.open(f"memory://goes-on-{made_again}"), NumbersShown()
    session = made_session(store, tmp_path, make_alarm_run(store), [], published=2 + SHOWN_AGAIN)
    session.shown = shown
    for n in range(5):
        if n == made_again:
            session.live.stage_finished("evaluate-0001", 1.0, reused=False)
        session.iteration_finished(n)
    assert shown.numbers == expected
    assert ("iterations 0 to 2 are published\n" in capsys.readouterr().err) == (made_again is None)


def test_no_puzzle_of_a_report_is_missing_in_its_set(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    for answered in read_answers(read_run(store, layout.run), store):
        assert set(answered.results["prompt_id"]) == set(answered.puzzles["prompt_id"])
        assert list(answered.puzzles.columns) == [name for name, column in PUZZLES.columns.items() if column.required]
