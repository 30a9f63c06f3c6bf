"""What a run did before its first iteration, and its pass rates, in every view."""

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Critic, Grades, PassRates, Puzzles, Ref, Rollouts, Values
from artifacts.schemas import (
    PASS_RATES,
    PASS_RATES_FILE,
    TOKEN_ADVANTAGES,
    TOKEN_ADVANTAGES_FILE,
    VALUES,
    VALUES_FILE,
    as_table,
)
from artifacts.store.store import Store
from flows.lookup.history import RunRecord, read_iteration, read_run
from flows.lookup.preparation import newest_rates, pretraining_of
from flows.report.figures import iteration_figures, terminal_columns
from flows.report.html.run_report import PAGE, report_files
from flows.report.metric_names import iteration_metrics
from flows.report.pictures.plots import seconds_plot
from flows.report.prefect_pages.ui_text import iteration_rows, seconds_rows, store_keys, summary_page
from flows.report.run_view import RunView
from flows.report.summary import print_summary, summary
from flows.report.terminal.live import table_header, table_row
from stages.curriculum.pass_rates import RUN, rate_figures
from stages.optional.update_rates import update_rates
from tests.support.contexts import make_context
from tests.support.json_page import check_documented
from tests.support.made_run import NOT_MADE, make_run

PRETRAIN = {"run": "<b>other", "first": 3, "last": 6, "epochs": 1, "updates": 2}
START = (
    "4 puzzles, accuracy 50.0% (0 for 25.0% of them, 1 for 25.0%), "
    "all answers right 31.2% (0 for 50.0% of them, 1 for 25.0%)"
)
CRITIC = "pretrained in 2 steps on the rollouts of <b>other, iterations 3 to 6"
EXPLAINED = "; explained variance of the rewards in iteration 1: 25.0%"


def pass_rates() -> pl.DataFrame:
    """Rates of four puzzles that no iteration samples, of the model `start`."""
    pairs = [(0.0, 0.0), (0.25, 0.0), (0.75, 0.25), (1.0, 1.0)]
    rows = [
        {
            "prompt_id": f"p{number}", "name": "start", "iteration": 0, "weights_digest": "w", "samples": 4,
            "accuracy": accuracy, "exact": exact, "tokens": 10.0, "truncated": 0.0,
        }
        for number, (accuracy, exact) in enumerate(pairs)
    ]  # fmt: skip
    return as_table(rows, PASS_RATES)


def publish_pass_rates(store: Store, layout: RunLayout, facts: dict[str, Any]) -> Ref[PassRates]:
    attempt = ArtifactAddress(store, layout.pass_rates, PassRates).attempt(Identity.of("rate", 1, {}))
    attempt.write_table(PASS_RATES_FILE, pass_rates(), PASS_RATES)
    return attempt.publish({"puzzles": 4, "models": ["start"], **facts})


def publish_critics(store: Store, layout: RunLayout) -> None:
    """Publishes a pretrained critic, and those of iterations 1 and 4 with their values."""
    for n, share in ((1, 0.25), (4, 0.5)):
        grades = Artifact.at(store, layout.iteration(n, "grades"), Grades).ref
        values = ArtifactAddress(store, layout.iteration(n, "values"), Values).attempt(
            Identity.of("value", 1, {"n": n}, grades=grades)
        )
        values.write_table(VALUES_FILE, as_table([], VALUES), VALUES)
        values.write_table(TOKEN_ADVANTAGES_FILE, as_table([], TOKEN_ADVANTAGES), TOKEN_ADVANTAGES)
        values.publish({"explained_variance/all": share}, grades=grades)
    step = {"step": 1, "loss": 0.1}
    critic = ArtifactAddress(store, layout.first_critic("critic"), Critic)
    critic.attempt(Identity.of("pretrain", 1, {})).publish({"steps": [step, step]})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord]:
    """A run with rated puzzles and a pretrained critic; iterations 1 and 2 measured pass rates of their own."""
    store = Store.open("memory://prepared")
    layout = make_run(store)
    before = publish_pass_rates(store, layout, {"rates": rate_figures(pass_rates())})
    with make_context(store, tmp_path_factory.mktemp("scratch")) as ctx:
        for n in (1, 2):
            rollouts = Artifact.at(store, layout.iteration(n, "rollouts"), Rollouts).ref
            grades = Artifact.at(store, layout.iteration(n, "grades"), Grades).ref
            out = ArtifactAddress(store, layout.iteration(n, "pass_rates"), PassRates)
            before = update_rates(ctx, rollouts, grades, before, iteration=n, out=out)
    publish_critics(store, layout)
    record = read_run(store, layout.run)
    return store, replace(record, recipe={**record.recipe, "value": {"pretrain": PRETRAIN}})


def shown(record: RunRecord, store: Store) -> str:
    """Returns the text of `show`."""
    console = Console(width=10_000)
    with console.capture() as capture:
        print_summary(record, store, console)
    return capture.get()


def test_rates_are_those_of_the_models_and_the_newest_of_the_run(prepared: tuple[Store, RunRecord]) -> None:
    store, record = prepared
    rates = newest_rates(record)
    assert rates["start"] == {
        "puzzles": 4,
        "accuracy": {"mean": 0.5, "at_0": 0.25, "at_1": 0.25},
        "exact": {"mean": 0.3125, "at_0": 0.5, "at_1": 0.25},
    }
    table = Artifact.at(store, record.layout.iteration(2, "pass_rates"), PassRates).read_table(
        PASS_RATES_FILE, PASS_RATES
    )
    own = table.filter(pl.col("name") == RUN)
    assert set(own["iteration"]) == {1, 2}
    assert rates[RUN]["puzzles"] == len(own) > 6
    assert rates[RUN]["accuracy"]["mean"] == pytest.approx(own["accuracy"].mean())
    before = replace(record, iterations=record.iterations[:1])
    assert list(newest_rates(before)) == ["start"]


def test_every_view_has_a_line_for_each_rated_model_and_one_for_the_critic(
    prepared: tuple[Store, RunRecord],
) -> None:
    store, record = prepared
    told = shown(record, store)
    assert f"Pass rates of start: {START}\n" in told
    assert told.count("Pass rates of ") == 2 and "Pass rates of run: " in told
    assert f"Critic: {CRITIC}{EXPLAINED}\n" in told
    page = report_files(RunView(record, store))[PAGE].decode()
    assert f"<p>Pass rates of start: {START}</p>" in page and "<p>Pass rates of run: " in page
    assert f"<p>Critic: {CRITIC.replace('<b>', '&lt;b&gt;')}{EXPLAINED}</p>" in page
    text = summary_page(record, store)
    assert f"Pass rates of `start`: {START}." in text
    assert f"Critic: {CRITIC.replace('<b>other', '`<b>other`')}{EXPLAINED}." in text


def test_every_view_counts_the_overlong_prompts_that_were_dropped(prepared: tuple[Store, RunRecord]) -> None:
    store, record = prepared
    out = ArtifactAddress(store, "puzzles/shorter", Puzzles)
    facts = {"train": 252, "val": 64, "dropped": {"train": 3, "val": 0}, "context_tokens": 2048}
    attempt = out.attempt(Identity.of("drop_overlong", 1, {}))
    attempt.write_bytes("train.parquet", b"")
    record = replace(record, shorter=Artifact.open(store, attempt.publish(facts)).manifest)
    line = "3 of 255 train puzzles dropped: prompts of 2048 tokens or more"
    assert f"Puzzles: {line}\n" in shown(record, store)
    assert f"<p>Puzzles: {line}</p>" in report_files(RunView(record, store))[PAGE].decode()
    assert f"Puzzles: {line}." in summary_page(record, store)
    assert summary(record, store)["dropped"] == {"train": 3, "val": 0}


def test_a_pretraining_of_one_iteration_is_told_before_its_critic_has_judged_anything(
    prepared: tuple[Store, RunRecord],
) -> None:
    _, record = prepared
    recipe = {**record.recipe, "value": {"pretrain": {**PRETRAIN, "last": 3}}}
    told = pretraining_of(replace(record, recipe=recipe, iterations=record.iterations[:1]))
    assert told is not None
    assert told.line() == "pretrained in 2 steps on the rollouts of <b>other, iteration 3"


def test_the_document_has_them_as_the_page_says(prepared: tuple[Store, RunRecord]) -> None:
    store, record = prepared
    document = json.loads(json.dumps(summary(record, store)))
    assert document["rates"] == newest_rates(record)
    expected = {"run": "<b>other", "first": 3, "last": 6, "steps": 2, "explained_variance": 0.25}
    assert document["pretraining"] == expected
    check_documented("show", document, unmet=NOT_MADE | {"damaged", "phases", "suites"})


def test_the_seconds_of_fold_are_in_the_tables_the_plot_and_the_trackers(prepared: tuple[Store, RunRecord]) -> None:
    store, record = prepared
    seconds = record.iterations[1].manifests["update_rates"].provenance["seconds"]
    figures = [iteration_figures(item) for item in record.iterations]
    assert (
        figures[1].total_s == pytest.approx(sum(figures[1].seconds.values())) and "update_rates" in figures[1].seconds
    )
    rows = seconds_rows(figures)
    assert [row["update_rates"] for row in rows] == [
        None, round(seconds, 2), round(record.iterations[2].seconds()["update_rates"], 2), None, None,
    ]  # fmt: skip
    assert list(rows[0])[-3:] == ["update_rates", "all", "tokens/s sampled"]
    assert iteration_metrics(record.iterations[1])["timing_s/update_rates"] == seconds
    assert read_iteration(store, record.layout, 1).facts("update_rates")["puzzles"] == 6
    slow = [replace(item, seconds={**item.seconds, "update_rates": 100.0}) for item in figures]
    assert seconds_plot(slow) != seconds_plot(figures)


def test_the_addresses_name_pass_rates_and_critics(prepared: tuple[Store, RunRecord]) -> None:
    _, record = prepared
    layout, keys = record.layout, store_keys(record)
    assert keys["pass_rates"] == layout.pass_rates
    assert keys["first critic"] == layout.first_critic("critic")
    names = [name.removeprefix("iteration 4: ") for name in keys if name.startswith("iteration 4: ")]
    assert names == ["rollouts", "grades", "values", "critic", "batch", "checkpoint", "report", "decision"]
    second = store_keys(replace(record, iterations=record.iterations[:3]))
    assert second["iteration 2: pass_rates"] == layout.iteration(2, "pass_rates")
    newest = record.iterations[4]
    cut = {stage: newest.manifests[stage] for stage in ("sample", "grade", "value")}
    begun = store_keys(replace(record, iterations=[replace(newest, manifests=cut)]))
    assert "iteration 4: values" in begun
    assert "iteration 4: critic" not in begun, "it is published after the values"


def test_iterations_have_the_number_of_puzzles_that_their_filter_leaves(prepared: tuple[Store, RunRecord]) -> None:
    _, record = prepared
    filtered = record.iterations[3]
    sampled = filtered.manifests["sample"]
    told = sampled.model_copy(update={"facts": {**sampled.facts, "eligible_puzzles": 17}})
    changed = replace(filtered, manifests={**filtered.manifests, "sample": told})
    figures = [iteration_figures(item) for item in (*record.iterations[:3], changed)]
    assert [row["eligible"] for row in iteration_rows(figures)] == [None, None, None, 17]
    columns = terminal_columns(figures)
    place = table_header(columns).split().index("eligible")
    assert table_row(figures[3], columns).split()[place] == "17"
    assert iteration_metrics(changed)["sampling/eligible_puzzles"] == 17


def test_a_run_without_these_stages_reads_as_before(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    figures = [iteration_figures(item) for item in record.iterations]
    told, page = shown(record, store), report_files(RunView(record, store))[PAGE].decode()
    assert not any(words in told for words in ("Pass rates", "Critic"))
    assert not any(words in page for words in ("Pass rates", "Critic", "eligible"))
    assert not any(words in summary_page(record, store) for words in ("Pass rates", "Critic"))
    assert "update_rates" not in seconds_rows(figures)[0] and "eligible" not in iteration_rows(figures)[0]
    assert not any("critic" in name or "pass_rates" in name for name in store_keys(record))
    document = summary(record, store)
    assert document["rates"] == {} and document["pretraining"] is None
