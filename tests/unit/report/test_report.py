"""The report: what it shows, and what it must never show raw."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout, manifest_key
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref, Report
from artifacts.schemas import RESULTS, TableSchema
from artifacts.store.store import Store
from flows.lookup.history import RunRecord, overview, read_run
from flows.report.example_group import find_example_group
from flows.report.figures import iteration_figures, plotted, terminal_columns
from flows.report.html.run_report import PAGE, report_files
from flows.report.metric_names import iteration_metrics
from flows.report.metrics import METRICS, interval_text
from flows.report.paired import PairedResults
from flows.report.pictures.plots import health_plot, run_plots
from flows.report.prefect_pages.ui_text import iteration_rows, seconds_rows
from flows.report.run_view import RunView
from flows.report.suites import OWN, curves
from flows.report.summary import before_after_rows, measure_rows, summary
from flows.report.terminal.live import table_row
from stages.promotion.promoted import read_promoted, write_promoted
from stages.statistics.records import Measurement
from stages.statistics.totals import totals
from stages.strategies.figures import stored_figures
from tests.support.made_run import WRONG, make_run


@pytest.fixture(scope="module")
def files(made: tuple[Store, RunLayout]) -> dict[str, bytes]:
    store, layout = made
    return report_files(RunView(read_run(store, layout.run), store))


def test_all_files_are_there(files: dict[str, bytes]) -> None:
    pictures = [name for name in files if name.endswith(".png")]
    study = ["difficulty.png", "lengths.png", "reliability.png"]  # four iterations are too few for a fit
    run = ["accuracy.png", "batch.png", "exact.png", "health.png", "reward.png", "seconds.png"]
    assert sorted(pictures) == sorted([*run, *study])
    for name in pictures:
        assert files[name].startswith(b"\x89PNG"), name
        assert len(files[name]) < 150_000, name
    assert json.loads(files["summary.json"])["run"] == "made"


def test_strategies_at_test_time_are_compared_with_training(
    files: dict[str, bytes], made: tuple[Store, RunLayout]
) -> None:
    page, (store, layout) = files[PAGE].decode(), made
    assert page.count("<h2>Strategies at test time</h2>") == 1
    assert page.index("<h3>before GRPO</h3>") < page.index("<h3>promoted</h3>")
    for when in ("before", "after"):
        figures = stored_figures(Artifact.at(store, layout.evaluation(when)))
        assert f"<td>{interval_text(figures.strategies['majority'].accuracy)}</td>" in page


@pytest.mark.parametrize(("part", "stale"), [("checkpoint", "after"), ("report", "before")])
def test_test_results_of_another_model_than_the_one_that_is_promoted_are_not_shown(
    tmp_path: Path, part: str, stale: str
) -> None:
    """After `iterate` another checkpoint is promoted, and after `--refresh sft` GRPO starts from another model."""
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=1)
    assert set(read_run(store, layout.run).evaluations) == {"before", "after"}
    other = Ref[Checkpoint]("Checkpoint", "models/other", "0" * 64)
    if part == "checkpoint":
        promoted = read_promoted(store, layout.promoted)
        assert promoted is not None
        changed = promoted.model_copy(update={"checkpoint": other, "checksum": ""})
        write_promoted(changed, store, layout.promoted)
    else:
        report = Artifact.at(store, layout.iteration(0, "report"))
        manifest = report.manifest.model_copy(update={"inputs": {**report.manifest.inputs, "weights": other.as_json()}})
        store.write_bytes(manifest_key(report.key), manifest.to_bytes())
    record = read_run(store, layout.run)
    assert set(record.evaluations) == {"before", "after"} - {stale}
    assert record.ended, "`iterate` measures no test split, so `watch` would wait for ever"


def test_the_page_fetches_nothing_and_runs_nothing(files: dict[str, bytes]) -> None:
    page = files[PAGE].decode()
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_model_output_is_escaped(files: dict[str, bytes]) -> None:
    page = files[PAGE].decode()
    assert WRONG not in page
    assert "Nobody &lt;b&gt;&amp; co&lt;/b&gt;" in page


def test_the_page_says_how_to_use_the_model(files: dict[str, bytes], made: tuple[Store, RunLayout]) -> None:
    page, (store, _) = files[PAGE].decode(), made
    assert f"deerstalker solve --checkpoint made --store {store.url} made:test --index 0" in page
    assert "12 test puzzles" in page


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({}, "the best of 5"),
        ({"tolerance_se": 1.0}, "within 1 standard error of the best of 5"),
        ({"min_gain": 0.02}, "none since has beaten the best before it by more than 2 points"),
    ],
)
def test_the_page_says_what_the_rule_of_promotion_promises(
    made: tuple[Store, RunLayout], rule: dict[str, float], said: str
) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    ruled = replace(record, recipe={**record.recipe, "promote": {**record.recipe["promote"], **rule}})
    assert record.promoted is not None
    score = f"{record.promoted.score:.1%} on the validation split"
    page = report_files(RunView(ruled, store))[PAGE].decode()
    assert re.search(rf"{re.escape(score)}[,;] {said}<", page)


def test_gain_is_the_mean_of_differences_puzzle_by_puzzle(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    scores: list[dict[str, float]] = []
    for when in ("before", "after"):
        table = Artifact.at(store, layout.evaluation(when)).read_table("results.parquet", RESULTS)
        sampled = table.filter(pl.col("mode") == "sampled")
        scores.append(dict(sampled.group_by("prompt_id").agg(pl.col("accuracy").mean()).iter_rows()))
    differences = [scores[1][puzzle] - scores[0][puzzle] for puzzle in scores[0]]
    gain = PairedResults(**record.tests(store)).gain("sampled")
    assert gain is not None
    assert gain.mean == pytest.approx(sum(differences) / 12)
    assert gain.low < gain.mean < gain.high


def test_the_headlines_read_each_result_table_once(
    made: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = made
    tables: list[str] = []
    read_table = Artifact.read_table

    def counted(artifact: Artifact, name: str, schema: TableSchema) -> pl.DataFrame:
        tables.append(f"{artifact.key}/{name}")
        return read_table(artifact, name, schema)

    monkeypatch.setattr(Artifact, "read_table", counted)
    report_files(RunView(read_run(store, layout.run), store))
    results = [f"{layout.evaluation(when)}/results.parquet" for when in ("before", "after")]
    # For the figures of a study, the headlines, and the puzzle shown before and after.
    assert Counter(key for key in tables if key in results) == dict.fromkeys(results, 3)


def test_a_run_that_has_only_begun_has_a_report(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    begun = RunRecord(layout, record.recipe, record.iterations[:1], {}, None)
    page = report_files(RunView(begun, store))[PAGE].decode()
    assert "0 of 4 iterations" in page
    assert "Before and after" not in page
    killed = RunRecord(layout, record.recipe, [], {}, None)  # in the first evaluation
    assert "0 of 4 iterations" in report_files(RunView(killed, store))[PAGE].decode()


def test_the_example_is_the_group_that_differs_most(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    example = find_example_group(read_run(store, layout.run).iterations[-1], layout, store)
    assert [item.title for item in example.completions] == ["best", "median", "worst"]
    rewards = [item.reward for item in example.completions]
    assert rewards == sorted(rewards, reverse=True)
    assert example.size == 4
    wrong = [answer for item in example.completions for answer in item.answers if not answer.correct]
    assert wrong
    assert {answer.note for answer in wrong} == {"outside"}


def test_summary_is_plain_json(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    document = summary(read_run(store, layout.run), store)
    json.dumps(document, allow_nan=False)
    assert [item["iteration"] for item in document["iterations"]] == [0, 1, 2, 3, 4]
    assert set(document["test"]) == {"before", "after"}


def test_skipped_steps_are_shown_everywhere_where_there_are_any(made: tuple[Store, RunLayout]) -> None:
    """Two of three steps of the second iteration: neither loss nor norm of theirs is known."""
    store, layout = made
    record = read_run(store, layout.run)
    assert not any("skipped" in row for row in iteration_rows([iteration_figures(item) for item in record.iterations]))
    assert "<th>skipped</th>" not in report_files(RunView(record, store))[PAGE].decode()
    assert "skipped" not in table_row(iteration_figures(record.iterations[2]), terminal_columns([]))
    assert iteration_metrics(record.iterations[2])["skipped_steps"] == 0.0

    finetuned = record.iterations[2].manifests["finetune"]
    (step,) = finetuned.facts["steps"]
    unknown = {"skipped": True, "loss": None, "policy_loss": None, "grad_norm": None, "ratio_max": None}
    facts = {**finetuned.facts, "steps": [step, {**step, **unknown}, {**step, **unknown}]}
    manifests = {**record.iterations[2].manifests, "finetune": finetuned.model_copy(update={"facts": facts})}
    iterations = [*record.iterations]
    iterations[2] = replace(iterations[2], manifests=manifests)
    record = replace(record, iterations=iterations)
    figures = [iteration_figures(item) for item in iterations]
    assert [row["skipped"] for row in iteration_rows(figures)] == [0, 0, 2, 0, 0]
    page = report_files(RunView(record, store))[PAGE].decode()
    assert "<th>skipped</th>" in page and "2 of 3" in page
    assert table_row(figures[2], terminal_columns([])).endswith("  2 of 3 steps skipped")
    assert [item["skipped_steps"] for item in summary(record, store)["iterations"]] == [0, 0, 2, 0, 0]
    metrics = iteration_metrics(iterations[2])
    assert (metrics["skipped_steps"], metrics["grad_norm"]) == (2.0, step["grad_norm"])


def test_statements_are_shown_where_completions_make_any(made: tuple[Store, RunLayout]) -> None:
    record = read_run(made[0], "made")
    silent = [manifest.facts for manifest in record.evaluations.values()]
    assert not [row for row in measure_rows(silent) if row[0].startswith("statements")]
    assert [row[0] for row in measure_rows(silent)][:2] == ["accuracy, sampled", "accuracy, greedy"]
    talking = json.loads(json.dumps(silent))
    talking[1]["sampled"]["deductions"]["statements"] = 2.0
    (row,) = [row for row in measure_rows(talking) if row[0].startswith("statements")]
    assert row[0] == "statements, sampled" and row[1].startswith("0.0: ") and row[2].startswith("2.0: ")


def test_what_early_stop_ended_is_shown_beside_what_is_unfinished(made: tuple[Store, RunLayout]) -> None:
    """One of four completions of a puzzle ran into the limit, two were stopped early; none of the greedy answers."""
    record = read_run(made[0], "made")
    table = Artifact.at(made[0], record.layout.evaluation("before")).read_table("results.parquet", RESULTS)
    ends = pl.when(pl.col("mode") == "greedy").then(pl.lit("stop"))
    ends = ends.when(pl.col("sample") == 0).then(pl.lit("length"))
    ends = ends.when(pl.col("sample") <= 2).then(pl.lit("early_stop")).otherwise(pl.lit("stop"))
    facts = totals(table.with_columns(finish_reason=ends)).as_json()
    assert (facts["sampled"]["truncated_fraction"], facts["sampled"]["early_stopped_fraction"]) == (0.25, 0.5)
    assert "early_stopped_fraction" not in facts["greedy"], "a report without any is what it was"
    rows = {row[0]: row[1] for row in measure_rows([facts])}
    assert rows["unfinished, sampled"] == "25.0% + 50.0% stopped early"
    assert rows["unfinished, greedy"] == "0.0%"
    figures = iteration_figures(record.iterations[1])
    assert figures.value("early_stopped_fraction") == 0.0
    (cell,) = (item.page_text for item in METRICS if item.key == "truncated_fraction")
    assert cell(figures.values) == "4.2%"
    assert cell({**figures.values, "early_stopped_fraction": 0.25}) == "4.2% + 25.0% stopped early"
    assert cell({**figures.values, "early_stopped_fraction": None}) == "4.2%", "graded before it was counted"


def test_suites_are_drawn_beside_the_runs_own_curve(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=2)
    for number in range(3):
        source = Artifact.at(store, layout.iteration(number, "report"))
        attempt = ArtifactAddress(store, layout.suite("harder", number), Report).attempt(
            Identity.of("evaluate", 1, {"n": number})
        )
        attempt.write_bytes("results.parquet", source.read_bytes("results.parquet"))
        attempt.publish({**source.manifest.facts, "split": "test"})
    record = read_run(store, layout.run)
    assert {title: [number for number, _ in curve["sampled"]] for title, curve in curves(record).items()} == {
        OWN: [0, 1, 2],
        "harder": [0, 1, 2],
    }
    own, harder = (curves(record)[title]["sampled"] for title in (OWN, "harder"))
    assert own == harder
    files = report_files(RunView(record, store))
    assert files["suites.png"].startswith(b"\x89PNG")
    page = files[PAGE].decode()
    assert "<h2>Suites</h2>" in page and "harder: 8 puzzles of split test" in page
    assert set(summary(record, store)["suites"]["harder"]) == {0, 1, 2}


def test_a_suite_of_first_weights_that_were_made_again_is_not_shown(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=1)
    measured = Artifact.at(store, layout.iteration(0, "report")).manifest.inputs["weights"]
    for suite, digest in (("same", measured["digest"]), ("before", "f" * 64)):
        weights = Ref(**{**measured, "digest": digest})
        attempt = ArtifactAddress(store, layout.suite(suite, 0), Report).attempt(
            Identity.of("evaluate", 1, {"suite": suite}, weights=weights)
        )
        attempt.write_json("facts.json", {})
        attempt.publish({}, weights=weights)
    assert set(read_run(store, layout.run).suites) == {"same"}


@pytest.mark.long
def test_kl_is_shown_where_the_run_has_a_reference(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    assert "<th>KL" not in report_files(RunView(record, store))[PAGE].decode(), "nothing was measured"
    for item in record.iterations[1:]:
        item.steps[0].update(kl=0.01 * item.number - 0.02, kl_penalty=None)
    page = report_files(RunView(record, store))[PAGE].decode()
    assert "<th>gap</th><th>KL</th><th>lr</th>" in page
    assert "<td>-0.0100</td>" in page and "<td>0.0200</td>" in page
    figures = [iteration_figures(item) for item in record.iterations]
    assert [row["KL"] for row in iteration_rows(figures)] == [None, -0.01, 0.0, 0.01, 0.02]
    told = [item["kl"] for item in summary(record, store)["iterations"]]
    assert told[0] is None and told[1:] == pytest.approx([-0.01, 0.0, 0.01, 0.02])
    for item in record.iterations[1:]:
        item.steps[0]["kl_penalty"] = 0.125
    page = report_files(RunView(record, store))[PAGE].decode()
    assert "<th>KL</th><th>KL penalty</th><th>lr</th>" in page and "<td>0.1250</td>" in page


def test_kl_has_a_panel_of_its_own(made: tuple[Store, RunLayout]) -> None:
    record = read_run(made[0], made[1].run)

    def size() -> tuple[int, int]:
        png = health_plot([iteration_figures(item) for item in record.iterations])
        return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])

    width, height = size()
    for item in record.iterations[1:]:
        item.steps[0]["kl"] = 0.01
    assert size() == (width, height * 3 // 2)


def test_overview_counts_finished_iterations(made: tuple[Store, RunLayout], tmp_path: Path) -> None:
    store, _ = made
    (run,) = overview(store)
    assert (run.run, run.iterations, run.iterations_done) == ("made", 4, 4)
    assert run.promoted and run.promoted.iteration in range(5)
    assert overview(Store.open(str(tmp_path))) == []


def test_nothing_is_shown_of_statements_that_a_run_does_not_make(made: tuple[Store, RunLayout]) -> None:
    """Chance hits of the reader: one statement in hundreds of answers, `0.0: 0.0 proved` in a table."""
    store, layout = made
    record = read_run(store, layout.run)
    few = {"statements": 0.008, "proved": 0.004, "restated": 0.0, "open": 0.0, "contradicted": 0.004}
    for manifest in (*(item.manifests["evaluate"] for item in record.iterations), *record.evaluations.values()):
        for mode in ("sampled", "greedy"):
            manifest.facts[mode]["deductions"] = few
    view = RunView(record, store)
    page = report_files(view)[PAGE].decode()
    assert "statements.png" not in view.plots
    shown = page.partition("<body>")[2]  # without the colours of verdicts
    assert shown and "proved" not in shown.partition("<pre>")[0] and "0.0: 0.0" not in shown
    assert not [row for row in before_after_rows(record) if row[0].startswith("statements")]
    assert not {"proved", "contradicted"} & {metric.column for metric in terminal_columns(view.figures)}
    assert not {"proved", "contradicted"} & iteration_rows(view.figures)[0].keys()
    assert summary(record, store)["iterations"][1]["proved_statements"] is None


def test_answers_all_right_are_drawn_where_puzzles_have_several_questions(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    figures = RunView(read_run(store, layout.run), store).figures
    assert "exact.png" in run_plots(figures, {})

    def of_one_question(item: Measurement | None) -> Measurement | None:
        return item and item.model_copy(update={"exact": item.accuracy})

    single = [
        replace(item, sampled=of_one_question(item.sampled), greedy=of_one_question(item.greedy)) for item in figures
    ]
    assert "exact.png" not in run_plots(single, {})


def test_a_run_that_has_only_begun_has_no_empty_part(made: tuple[Store, RunLayout]) -> None:
    """It has measured the model before training and nothing else."""
    store, layout = made
    record = read_run(store, layout.run)
    begun = replace(record, iterations=record.iterations[:1], evaluations={}, promoted=None)
    view = RunView(begun, store)
    assert set(view.plots) == {"accuracy.png", "exact.png"}
    page = report_files(view)[PAGE].decode()
    assert "<h2>Health and time</h2>" not in page
    for empty in ("<th>reward</th>", "<th>lr</th>", '<div class="plots"></div>', '<div class="cards"></div>'):
        assert empty not in page
    shown = {"iteration", "sampled", "greedy", "all right", "all right, greedy", "promoted", "seconds"}
    assert iteration_rows(view.figures)[0].keys() == shown
    assert "tokens/s sampled" not in seconds_rows(view.figures)[0]


def test_a_panel_of_health_that_is_0_throughout_is_left_out(made: tuple[Store, RunLayout]) -> None:
    figures = RunView(read_run(made[0], made[1].run), made[0]).figures
    never = [replace(item, values={**item.values, "clip_fraction": 0.0}) for item in figures]
    once = [*never[:-1], replace(never[-1], values={**never[-1].values, "clip_fraction": 0.01})]
    assert ["clip_fraction" in [metric.key for metric in plotted(shown)] for shown in (never, once)] == [False, True]
