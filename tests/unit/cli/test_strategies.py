"""Strategies on the command line: read, named as they are read, and refused in one line each."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.cli.console.options import MeasureOptions
from flows.config.recipes import load_recipe, validate
from flows.config.strategies import strategy_settings
from flows.inputs.suites import measured_puzzles
from flows.orchestration.gpu_permit import gpu_permit
from flows.report.summary import reliability_rows, strategy_rows
from flows.report.terminal.live import current_view
from flows.session.calls import Stages
from stages.context import StageContext
from stages.evaluate import EvaluateConfig
from stages.strategies.config import title_of
from stages.strategies.figures import CEILING, check_provable, stored_figures


def config_of(*strategies: str, **answers: Any) -> EvaluateConfig:
    return validate(EvaluateConfig, MeasureOptions(strategy=strategies, **answers).config(), "evaluate")


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("majority", "majority"),
        ("best_of:score=mean_logprob", 'best_of:score="mean_logprob"'),
        ("think_twice:rounds=2", "think_twice"),
        ('budget_forcing:end="</think>",waits=2', 'budget_forcing:waits=2,end="</think>"'),
        ("budget_forcing:end=</think>", 'budget_forcing:end="</think>"'),
        ("truncation_probe:budgets=[0, 8],answer_tokens=5", "truncation_probe:budgets=[0, 8],answer_tokens=5"),
    ],
)
def test_a_strategy_is_read_and_named(text: str, title: str) -> None:
    (strategy,) = config_of(text).strategies
    assert title_of(strategy) == title
    assert validate(EvaluateConfig, {"strategies": [strategy_settings(title)]}, "again").strategies == (strategy,)


@pytest.mark.parametrize(
    ("strategies", "answers", "words"),
    [
        (["majorty"], {}, r"--strategy majorty: unknown, did you mean 'majority'\?.*one of single, majority, best_of"),
        (["think_twice:3"], {}, "'3' is not key=value"),
        (["think_twice:round=3"], {}, r"strategies\.0\.round.*did you mean"),
        (["best_of:score=length"], {}, "score: Input should be 'logprob', 'mean_logprob' or 'statements'"),
        (["majority"], {"samples": 1}, "majority chooses among samples, but there is 1 of each puzzle: sample 2"),
        (["best_of"], {"samples": 1}, "best_of chooses among samples, but there is 1"),
        (["sift", "sift:temperature=0.0"], {}, "strategy sift is named twice"),
        (["think_twice"], {"tool_calls": 1}, "think_twice asks in rounds, which cannot call a solver: set tool_calls"),
    ],
)
def test_a_wrong_strategy_is_refused_in_one_line(strategies: list[str], answers: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words) as caught:
        config_of(*strategies, **answers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of(temperature=0.009), r"sampled\.temperature: .*; expected 0, or from 0\.01 to 2"),
        (config_of(temperature=2.1), r"sampled\.temperature: .*; expected 0, or from 0\.01 to 2"),
        (config_of(temperature=0.0), r"sampled\.samples_per_prompt: 4 at temperature 0; expected 1, .*--samples 1"),
        (
            config_of("majority", "budget_forcing:temperature=1e-9"),
            r"strategies\.1\.temperature: .*; expected 0, or from 0\.01 to 2",
        ),
    ],
)
def test_a_temperature_that_vllm_would_change_or_refuse_is_refused(
    config: EvaluateConfig, words: str, ctx: StageContext
) -> None:
    words = rf"evaluation\.{words}"
    with gpu_permit(None, "run", ctx.log) as permit, pytest.raises(BadInputError, match=words):
        measured_puzzles("nobody:test", None, config, Stages(ctx, current_view(), permit))


@pytest.mark.parametrize("command", ["evaluate --checkpoint nobody", "backfill nobody --suite s"])
def test_commands_refuse_an_unknown_strategy_before_they_start_anything(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    words = [*command.split(), "--puzzles", "nobody:test", "--store", str(folder), "--strategy", "majorty"]
    assert run_command(words) == 2
    error = capsys.readouterr().err
    assert "--strategy majorty: unknown, did you mean 'majority'?" in " ".join(error.split())
    assert not folder.exists()


def test_statements_are_refused_where_nothing_is_proved() -> None:
    strategies = config_of("best_of:score=statements").strategies
    check_provable(strategies, ["temporal_clue", "zebra"])
    with pytest.raises(BadInputError, match=r'strategy best_of:score="statements": the environment .*file.* cannot'):
        check_provable(strategies, ["temporal_clue", "file:number"])
    check_provable(config_of("best_of").strategies, ["file:number"])


def test_a_recipe_that_needs_proofs_of_questions_from_a_file_is_refused() -> None:
    settings = ['final.strategies=[{strategy="best_of",score="statements"}]']
    assert len(load_recipe("answers_only", settings).final.strategies) == 1
    puzzle = 'puzzles.puzzle={environment="file",path="q.jsonl",prompt="{question}",grader="number"}'
    with pytest.raises(BadInputError, match=r"final\.strategies: best_of by statements: the environment"):
        load_recipe("answers_only", [*settings, puzzle, "warm_start=null"])


def test_only_strategies_that_ask_again_change_what_an_evaluation_is() -> None:
    plain = config_of().identity_settings
    assert plain["strategies"] == []
    assert config_of("majority", "best_of").identity_settings == plain
    asked = config_of("majority", "think_twice").identity_settings
    assert [item["strategy"] for item in asked["strategies"]] == ["think_twice"]


def test_the_figures_of_a_report_are_those_of_its_strategies(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    report = Artifact.at(store, layout.evaluation("after"))
    figures = stored_figures(report)
    assert list(figures.strategies)[:3] == ["single", "majority", "majority:letters"]
    results = report.read_table("results.parquet", RESULTS).filter(pl.col("mode") == "sampled")
    assert figures.strategies["single"].accuracy.mean == pytest.approx(results["accuracy"].mean())
    some = figures.chosen(config_of("majority").strategies)
    assert list(some.strategies) == ["majority", "majority:letters", CEILING]
    document = json.loads(json.dumps(some.as_json()))
    rows = strategy_rows(document["strategies"])
    assert [row[0] for row in rows] == list(some.strategies) and all(len(row) == 4 for row in rows)
    assert [row[0] for row in reliability_rows(document["reliability"])] == ["1", "2", "4"]


def test_a_report_shows_its_points_and_its_notes() -> None:
    share, tokens = {"mean": 0.5, "low": 0.25, "high": 0.75}, {"mean": 8.0, "low": 7.5, "high": 8.5}
    figures = {"accuracy": share, "exact": share, "tokens": tokens}
    notes = {"restated": share, "invented": share}
    rows = strategy_rows({"sift": {**figures, "points": {"round 1": figures}, "faithfulness": notes}})
    shown = "50.0% (25.0 to 75.0)"
    assert rows == [
        ["sift", shown, shown, "8.0 (7.5 to 8.5)"],
        ["- round 1", shown, shown, "8.0 (7.5 to 8.5)"],
        ["- notes", f"of the clues: {shown}", f"invented: {shown}", ""],
    ]
