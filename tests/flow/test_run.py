"""A whole run with vLLM, torchrun and Prefect, killed on the way, against what a run never killed would leave."""

import io
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.reading import Artifact
from artifacts.schemas import GRADES, ROLLOUTS
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE, PackedBatch
from flows.cli.app import run_command
from flows.lookup.checkpoints import published_checkpoint
from flows.lookup.history import read_run
from flows.report.timeline import iteration_timeline, run_timeline
from tests.support.installed import ONE_ENGINE, TINY
from tests.support.json_page import check_documented
from tests.support.processes import DEERSTALKER
from tests.support.sockets import SocketWatch, cluster_environment
from tests.support.train_command import LIMIT_S, TrainCommand
from tests.support.waiting import output_of

LEFT_LIMIT_S = 120.0
"""What a killed run leaves is gone by then; on an idle machine after a second."""


ROUNDS = {"points", "faithfulness"}
"""Figures of strategies that ask in rounds, which these runs have not."""
BACKFILL = (
    "backfill", "tiny", "--puzzles", "tiny:test", "--count", "4", "--samples", "2", "--max-tokens", "24",
    "--profile", str(ONE_ENGINE),
)  # fmt: skip


def tiny(folder: Path) -> TrainCommand:
    """Returns the command of the story, which starts a Prefect server of its own."""
    return TrainCommand(folder, "tiny", **cluster_environment())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs, kills in `sample`, and runs to the end."""
    run = tiny(tmp_path_factory.mktemp("story"))
    rollouts = run.store / RunLayout("tiny").iteration(2, "rollouts")

    def shards() -> list[Path]:
        return sorted(rollouts.glob("progress-*/rollouts-*.parquet"))

    run.kill_when(lambda: shards() and not (rollouts / MANIFEST_NAME).is_file())
    shards_at_kill = shards()
    deadline = time.monotonic() + LEFT_LIMIT_S
    while (left := list(run.processes().values())) and time.monotonic() < deadline:
        time.sleep(0.05)

    with SocketWatch(run.processes) as sockets:
        document = run.finish()
    return {
        "run": run,
        "shards_at_kill": shards_at_kill,
        "left": left,
        "document": document,
        "sockets": sockets,
    }


def test_it_listens_on_loopback_only(story: dict[str, Any]) -> None:
    sockets: SocketWatch = story["sockets"]
    assert sockets.exposed == []
    programs = " ".join(listener.program for listener in sockets.seen)
    for program in ("stages.training.worker_group.worker", "VLLM::EngineCore", "server_process.py"):
        assert program in programs, "looked at too late, or not at all"


def test_a_killed_run_leaves_no_process(story: dict[str, Any]) -> None:
    assert story["left"] == []


def test_only_missing_groups_are_sampled_after_a_kill(story: dict[str, Any]) -> None:
    run: TrainCommand = story["run"]
    key = "runs/tiny/iterations/0002/rollouts"
    artifact = Artifact.at(Store.open(str(run.store)), key)
    kept = {path.name for path in story["shards_at_kill"]}
    assert kept <= set(artifact.names())
    rollouts = artifact.read_tables(ROLLOUTS)
    assert rollouts.group_by("group").len()["len"].to_list() == [8] * 24
    reused = artifact.manifest.facts["groups_reused"]
    assert 0 < reused < 24
    stored = pl.concat(pl.read_parquet(io.BytesIO(path.read_bytes())) for path in story["shards_at_kill"])
    assert stored["group"].n_unique() == reused


def test_the_artifacts_fit_together(story: dict[str, Any]) -> None:
    run: TrainCommand = story["run"]
    store = Store.open(str(run.store))
    for iteration in (1, 2):
        key = f"runs/tiny/iterations/{iteration:04d}"
        rollouts = Artifact.at(store, f"{key}/rollouts").read_tables(ROLLOUTS)
        grades = Artifact.at(store, f"{key}/grades").read_tables(GRADES)
        batch = PackedBatch.from_bytes(Artifact.at(store, f"{key}/batch").read_bytes(BATCH_FILE), key)
        informative = grades.filter(pl.col("reward").max().over("group") > pl.col("reward").min().over("group"))
        trained = rollouts.join(informative, on=["group", "sample"])
        assert int(batch.completion_mask.sum()) == trained["completion_token_ids"].list.len().sum()
        assert set(rollouts["weights_digest"]) == {
            Artifact.at(store, f"{key}/rollouts").manifest.identity.inputs["weights"]
        }
        steps = Artifact.at(store, f"{key}/checkpoint").manifest.facts["steps"]
        assert [step["step"] for step in steps] == [1, 2]
        # The first step starts from the sampler's own weights: what remains is bf16 rounding.
        assert steps[0]["sampler_gap_mean"] < 0.05


def test_the_document_tells_the_run(story: dict[str, Any]) -> None:
    document = story["document"]
    assert [row["iteration"] for row in document["iterations"]] == [0, 1, 2]
    assert set(document["test"]) == {"before", "after"}
    sections = {"suites", "dropped", "texts", "phases", "rates", "pretraining", "tasks"}
    check_documented("train", document, unmet={*sections, "early_stopped_fraction", "damaged", *ROUNDS})
    report = Path(document["report"].removeprefix("file://")).read_text()
    assert "<script" not in report and "data:image/png;base64" in report


def test_the_report_draws_an_iteration_that_one_attempt_made(story: dict[str, Any]) -> None:
    store = Store.open(str(story["run"].store))
    record = read_run(store, "tiny")
    killed, line = iteration_timeline(record, 2, store), run_timeline(record, store)
    assert killed is not None and not killed.whole, "`sample` of it was killed"
    assert line is not None and line.whole and line.iteration == 1
    assert {"sample", "finetune", "evaluate"} == line.by_stage().keys()
    assert sum(line.shares().values()) == pytest.approx(1) and min(line.shares().values()) >= 0
    seconds = {bar.name: bar.span[1] - bar.span[0] for bar in line.bars}
    assert seconds["weights"] > 0 and seconds["optimizer_state"] > 0
    totals = record.iterations[1].facts("finetune")["totals"]
    trained = next(bar for bar in line.bars if bar.name == "finetune").of("trainer")
    assert sum(end - begin for begin, end in trained) == pytest.approx(
        totals["train_s"] + totals["old_logprobs_s"], abs=0.01
    )
    report = Path(story["document"]["report"].removeprefix("file://")).read_text()
    assert "One iteration in time" in report and line.line() in report


@pytest.mark.long
def test_recipes_are_compared_on_published_rollouts(
    story: dict[str, Any], prefect_api_url: str, tmp_path: Path
) -> None:
    run: TrainCommand = story["run"]
    other = tmp_path / "reinforce.toml"
    other.write_text(TINY.read_text() + '\n[finetune.loss]\nkind = "reinforce"\n')
    recipes = ("--recipes", f"own,{other},dapo", "--profile", str(ONE_ENGINE))
    compared = deerstalker(run, prefect_api_url, "compare", "tiny", *recipes)
    own, reinforce, dapo = (compared["recipes"][name] for name in ("own", str(other), "dapo"))
    made = Artifact.at(Store.open(str(run.store)), "runs/tiny/iterations/0001/checkpoint")
    assert own["checkpoint"] == made.manifest.digest != reinforce["checkpoint"]
    assert own["reward"] == reinforce["reward"] == dapo["reward"]
    assert [row["taken"] for row in (own, reinforce, dapo)] == ["sections", "sections", "algorithm"]
    assert own["laid_over"] == {} and reinforce["laid_over"] == {"finetune.loss.kind": "reinforce"}
    assert dapo["learning_rate"] == own["learning_rate"] and dapo["updates"] == own["updates"]
    rollouts = Artifact.at(Store.open(str(run.store)), "runs/tiny/iterations/0001/grades").read_tables(GRADES)
    mixed = rollouts.filter(pl.col("accuracy").max().over("group") > pl.col("accuracy").min().over("group"))
    assert dapo["batch"]["groups"] == mixed["group"].n_unique()
    assert Path(compared["report"].removeprefix("file://")).read_text().count("data:image/png") == 4
    check_documented("compare", compared)


def deerstalker(run: TrainCommand, prefect_api_url: str, *arguments: str, status: int = 0) -> Any:
    """The JSON document that a command on the story's store prints."""
    command = [DEERSTALKER, *arguments, "--json"]
    store = [] if arguments[0] == "verify" else ["--store", str(run.store)]
    environment = {**os.environ, "PREFECT_API_URL": prefect_api_url}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *store], **pipes, env=environment) as process:
        output, errors = output_of(process, LIMIT_S, run.folder)
    assert process.returncode == status, errors[-3000:]
    return json.loads(output) if output else errors


@pytest.mark.long
def test_checkpoints_are_evaluated_side_by_side_and_later_ones_are_added(
    story: dict[str, Any], prefect_api_url: str
) -> None:
    """Two side by side, each with an engine of its own; the second command finds their reports and adds one."""
    run: TrainCommand = story["run"]
    command = [*BACKFILL, "--suite", "harder"]
    first = deerstalker(run, prefect_api_url, *command, "--checkpoints", "every", "--every", "2", "--at-once", "2")
    assert (first["evaluated"], first["cached"], list(first["runs"]["tiny"])) == (2, 0, ["0", "2"])
    before = {key: manifest.attempt for key, manifest in run.manifests().items() if "/suites/" in key}
    facts = first["runs"]["tiny"]["2"]
    assert (facts["puzzles"], facts["split"], facts["sampled"]["completions"]) == (4, "test", 8)
    both = deerstalker(run, prefect_api_url, *command)
    assert (both["evaluated"], both["cached"]) == (1, 2)
    after = {key: manifest.attempt for key, manifest in run.manifests().items() if "/suites/" in key}
    assert len(after) == 3
    assert {key: after[key] for key in before} == before
    check_documented("backfill", first, both, unmet={"early_stopped_fraction", "tasks", *ROUNDS})
    page = Path(both["reports"]["tiny"].removeprefix("file://")).read_text()
    assert "<h2>Suites</h2>" in page
    other = deerstalker(run, prefect_api_url, *command, "--temperature", "0.5", status=1)
    assert "temperature: 1.0 -> 0.5" in other


@pytest.mark.parametrize("command", [("show", "tiny"), ("lineage", "tiny@2")], ids=["show", "lineage"])
def test_a_finished_run_is_shown_in_80_columns(
    story: dict[str, Any], command: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chance decides which checkpoint is promoted; that of iteration 0 has a lineage without the run."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command([*command, "--store", str(story["run"].store)]) == 0
    shown = capsys.readouterr().out
    assert "tiny" in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []


@pytest.mark.long
def test_a_finished_run_is_read_not_repeated_though_it_was_pruned(
    story: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run: TrainCommand = story["run"]
    rule = ["--keep-last", "1", "--keep-every", "0", "--keep-for", "regrade", "--comparisons"]
    parts = ["--parts", "optimizer_state,checkpoint,batch,rollouts"]
    assert run_command(["prune", *rule, *parts, "--yes", "--json", "--store", str(run.store)]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] > 0
    assert run_command(["verify", str(run.store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == []
    before = run.manifests()
    again, first = (
        {name: value for name, value in one.items() if name != "suites"}
        for one in (tiny(run.folder).finish(), story["document"])
    )
    assert again == first
    assert run.manifests() == before
    last_lines = run.log.read_text().splitlines()[-24:]
    stages = [line for line in last_lines if line.startswith(("sample", "finetune", "evaluate", "sft"))]
    assert stages and all("cached" in line.lower() for line in stages)


@pytest.mark.long
def test_another_run_of_the_recipe_begins_with_the_same_warm_start(story: dict[str, Any]) -> None:
    run: TrainCommand = story["run"]
    before = run.manifests()
    TrainCommand(run.folder, "other", ["iterations=0"], **cluster_environment()).finish()
    made = [key for key in run.manifests() if key not in before]
    assert made and all(key.startswith("runs/other/") for key in made)
    store = Store.open(str(run.store))
    first = {name: published_checkpoint(f"{name}@0", store) for name in ("tiny", "other")}
    assert first["tiny"] == first["other"]
    assert first["tiny"].key.startswith("models/warm-start-")
    assert run_command(["export", "other", str(run.folder / "exported"), "--store", str(run.store)]) == 0
    assert "# other, before GRPO" in (run.folder / "exported" / "README.md").read_text()
