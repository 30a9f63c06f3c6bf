"""`docs/reference/json.md` names every field of every document: those that need neither engine nor server, here.

The other commands' documents are compared where tests run them: `tests/flow` and `test_down.py`.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cyclopts import App

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Report
from artifacts.schemas import PUZZLES, RESULTS
from artifacts.store.store import Store
from flows.cli.app import app, run_command
from flows.cli.console.options import Stored
from flows.cli.console.usage import command_names
from flows.cli.solve import print_answers
from flows.config.model_size import size_by_name
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.doctor.checks import engine_check, gpu_check
from flows.doctor.facts import MachineFacts
from flows.doctor.fit import fit_checks
from flows.doctor.hardware import Hardware, load_hardware
from flows.doctor.store_facts import StoreFacts
from flows.evaluation import Evaluation
from stages.environments.puzzle import Grader
from stages.environments.tables import from_table
from stages.evaluate import regrade
from stages.hardware.compute_type import CudaDevice
from stages.sampling.client import SampledCompletion
from stages.sampling.config import EngineHardware
from stages.statistics.totals import totals
from stages.strategies.figures import sample_figures
from tests.support.json_page import check_documented, documented
from tests.support.made_run import NOT_MADE, copied_store, make_run

DAMAGE = {"damaged"}
ROUNDS = {"points", "faithfulness"}
"""Figures of strategies that ask in rounds, which need an engine."""
PHASED = {"phases", "rates", "pretraining"}
"""What only runs with phases, rates or a critic have; `test_phases.py` and `test_preparation.py` beside the report
read it."""


@pytest.fixture(scope="module")
def runs(made: tuple[Store, RunLayout], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with the run `made`, measured on a suite and pruned, and another of another length from another host."""
    folder = tmp_path_factory.mktemp("documents")
    store, layout = copied_store(made[0], folder / "store"), made[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.node", lambda: "another-host")
        make_run(store, run="other", iterations=3, seed=1)
    report = Artifact.at(store, layout.iteration(2, "report"))
    attempt = ArtifactAddress(store, layout.suite("harder", 2), Report).attempt(Identity.of("evaluate", 1, {"n": 2}))
    attempt.write_bytes("results.parquet", report.read_bytes("results.parquet"))
    attempt.publish(report.manifest.facts)
    return store


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """The document that a command prints."""
    assert run_command([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def commands_with_json(commands: App, chain: tuple[str, ...] = ()) -> list[str]:
    """Every command of the command line that has `--json`, as it is typed."""
    chains: list[str] = []
    if commands.default_command and "--json" in _options(commands):
        chains.append(" ".join(chain))
    for name in command_names(commands):
        chains += commands_with_json(commands[name], (*chain, name))
    return chains


def _options(command: App) -> set[str]:
    return {name for argument in command.assemble_argument_collection() for name in argument.names}


def test_every_command_that_reports_has_a_section() -> None:
    commands = commands_with_json(app)
    assert {"train", "puzzles make", "recipes", "recipes show"} <= set(commands)
    assert sorted(commands) == sorted(documented())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"run": "made", "report": "file:///x", "new": 1}, "new is not in docs/reference/json.md"),
        ({"run": "made", "report": {"deep": [1]}}, r"report\.deep is not in docs/reference/json.md"),
        ({"run": "made"}, "lists what no document has: report"),
        ({"run": None, "report": "file:///x"}, "does not say when run is null"),
    ],
)
def test_a_page_that_differs_from_a_document_is_noticed(document: dict[str, Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_documented("report", document)


@pytest.mark.long
def test_documents_of_a_store(runs: Store, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--store", runs.url)
    check_documented("show", printed(capsys, "show", "made", *at), unmet=NOT_MADE | DAMAGE | PHASED)
    check_documented("runs", printed(capsys, "runs", *at), unmet=DAMAGE)
    check_documented("report", printed(capsys, "report", "made", *at), unmet=DAMAGE)
    check_documented("diff", printed(capsys, "diff", "made", "other", *at), unmet=NOT_MADE | DAMAGE)
    rule = ("--parts", "checkpoint,batch,rollouts", "--keep-last", "1", "--keep-every", "0", "--keep-for", "regrade")
    listed, removed = (printed(capsys, "prune", "other", *rule, *yes, *at) for yes in ((), ("--yes",)))
    assert removed["removed"] and not listed["removed"] and removed["removals"]
    check_documented("prune", listed, removed, unmet=DAMAGE)
    pruned = removed["removals"][0]["key"]
    check_documented(
        "lineage",
        printed(capsys, "lineage", pruned, *at),
        printed(capsys, "lineage", "runs/other/iterations/0002/decision", "--depth", "0", *at),
    )


def test_documents_of_a_damaged_store(runs: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copied_store(runs, tmp_path / "store")
    key = next(key for key in store.list("runs/made") if key.endswith(".parquet"))
    store.write_bytes(key, b"something else")
    store.write_bytes("runs/made/iterations/0009/rollouts/attempt-00ff/half.bin", b"half")
    (tmp_path / "store" / "runs" / "made" / ".tmp-1-00ff").write_bytes(b"half of a file, of a killed process")
    check_documented("verify", printed(capsys, "verify", store.url, status=1))
    whole = printed(capsys, "lineage", "runs/other/iterations/0003/decision", "--depth", "0", "--store", store.url)
    for node in whole["ancestors"]:
        if node["key"].endswith("/report"):
            store.delete(node["key"])
    gone = printed(capsys, "lineage", "runs/other/iterations/0003/decision", "--depth", "0", "--store", store.url)
    assert "gone" in {node["state"] for node in gone["ancestors"]}
    check_documented("lineage", gone, unmet={"pruned"})


@pytest.mark.parametrize(
    "command", [["runs"], ["show", "made"], ["report", "made"], ["diff", "made", "other"], ["prune"]]
)
def test_documents_name_what_is_damaged(
    runs: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    store = copied_store(runs, tmp_path / "store")
    store.write_bytes("runs/made/promoted.json", b"half")
    document = printed(capsys, *command, "--store", store.url, status=1)
    others = {field.path[0] for field in documented()[command[0]]} - DAMAGE
    check_documented(command[0], {"damaged": document["damaged"]}, unmet=others)


def test_documents_of_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    check_documented("recipes", printed(capsys, "recipes"))
    check_documented("recipes diff", printed(capsys, "recipes", "diff", "grpo", "dapo"))
    shown = [printed(capsys, "recipes", "show", name) for name in ("grpo", "answers_only", "deepscaler")]
    check_documented("recipes show", *shown)
    assert {field.path[0] for field in documented()["recipes show"]} == set(Recipe.model_fields)


def test_documents_of_puzzles(
    made: tuple[Store, RunLayout], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    puzzles = _puzzles(made)[:3]
    texts = [{"num_clues": item.num_clues, "prompt": item.prompt, "solution": item.solution} for item in puzzles]
    path, completion = tmp_path / "some.json", tmp_path / "completion.txt"
    path.write_text(json.dumps(texts))
    clue = next(line for line in puzzles[0].prompt.splitlines() if line.startswith("- "))
    completion.write_text(clue)
    proved = printed(capsys, "puzzles", "prove", str(path), str(completion))
    assert proved["statements"]
    check_documented("puzzles prove", proved)
    texts[0]["prompt"] = puzzles[0].prompt.replace("- The ", "- Perhaps the ", 1)
    answers = {**puzzles[1].solution}
    letter = next(iter(answers))
    values = {item.solution[letter] for item in _puzzles(made)} - {answers[letter]}
    texts[1]["solution"] = {**answers, letter: sorted(values)[0]}
    path.write_text(json.dumps(texts))
    plain, minimal = (printed(capsys, "puzzles", "solve", str(path), *form) for form in ((), ("--minimal",)))
    check_documented("puzzles solve", plain, minimal)


def test_documents_of_a_model(made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]) -> None:
    puzzle = _puzzles(made)[0]
    answer = SampledCompletion([1, 2], [-0.1, -0.1], "length", "A. Nobody")
    solved: list[Any] = []
    for asked in (puzzle, None):
        print_answers(asked, "made", [answer], Stored(json=True))
        solved.append(json.loads(capsys.readouterr().out))
    clues = [line.removeprefix("- ") for line in puzzle.prompt.splitlines() if line.startswith("- ")]
    steps = f"{clues[0]}\nIt is so. {clues[1].replace(' was ', ' was not ', 1)}.\nA. Nobody"
    print_answers(
        puzzle,
        "made",
        [SampledCompletion([1, 2], [-0.1, -0.1], "length", steps)],
        Stored(json=True),
        explained=puzzle,
    )
    solved.append(json.loads(capsys.readouterr().out))
    explanation = solved[-1]["completions"][0]["explanation"]
    assert [step["verdict"] for step in explanation["steps"]] == ["restated", "contradicted"]
    assert [step["premises"] for step in explanation["steps"]] == [[1], [2]]
    assert (explanation["first_false_step"], explanation["unfinished"]) == (2, True)
    check_documented("solve", *solved)
    store, layout = made
    report = Artifact.at(store, layout.evaluation("after"))
    results = report.read_table("results.parquet", RESULTS).with_columns(pl.lit("early_stop").alias("finish_reason"))
    known = Artifact.at(store, report.manifest.inputs["puzzles"]["key"]).read_table("test.parquet", PUZZLES)
    graders: tuple[Grader, ...] = ("strict", "published")
    evaluation = Evaluation(
        checkpoint=Artifact.at(store, layout.iteration(4, "checkpoint")).ref.as_json(),
        puzzles=12,
        report=f"{store.url}/{layout.evaluation('after')}",
        gradings={grader: totals(regrade(results, known, grader)).as_json() for grader in graders},
        tasks={"temporal_clue": totals(results).as_json()},
        **sample_figures(results).as_json(),
    )
    point = evaluation.strategies["single"]
    notes = {"restated": point["accuracy"], "invented": point["accuracy"]}
    sifted = {**point, "points": {"round 1": point}, "faithfulness": notes}
    evaluation = evaluation.model_copy(update={"strategies": {**evaluation.strategies, "sift": sifted}})
    check_documented("evaluate", evaluation.model_dump(mode="json"))


def test_documents_of_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command on this machine, and the checks of a machine with a GPU that runs a recipe."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    arguments = ["doctor", "--recipe", "answers_only", "--store", str(tmp_path), "--json"]
    assert run_command(arguments) in (0, 1)
    here = json.loads(capsys.readouterr().out)
    gib = 1 << 30
    gpu = CudaDevice("NVIDIA H100", (9, 0), 80 * gib)
    machine = MachineFacts(
        cpu="A CPU",
        flags=frozenset({"avx2"}),
        cores=2,
        memory_bytes=24 * gib,
        spare_bytes=20 * gib,
        gpus=(gpu,),
        engine=("vllm", "0.32.0"),
    )
    hardware, store = load_hardware("cuda", ()), StoreFacts("/data", "folder", free_bytes=gib)
    outside = Hardware(engine=EngineHardware(external_urls=("http://127.0.0.1:1",)))
    checks = [
        gpu_check(machine, hardware),
        engine_check(machine, outside),
        *fit_checks(
            load_recipe("answers_only"),
            hardware,
            size_by_name("a-7B"),
            machine,
            store,
            ("bf16", "bf16"),
            ("cuda", "cuda"),
            None,
        ),
    ]
    there = {"status": "ok", "recipe": None, "profile": "cuda", "checks": [asdict(check) for check in checks]}
    check_documented("doctor", here, json.loads(json.dumps(there)))


def _puzzles(made: tuple[Store, RunLayout]) -> list[Any]:
    key = Artifact.at(made[0], made[1].iteration(0, "report")).manifest.inputs["puzzles"]["key"]
    return from_table(Artifact.at(made[0], key).read_table("test.parquet", PUZZLES))
