"""A run with texts of a teacher and a teacher of tokens, killed in three of these stages, then finished."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, Texts
from artifacts.store.store import Store
from artifacts.verification import verify
from flows.cli.app import run_command
from flows.lookup.history import read_run
from tests.support.tiny_runs import DISTILLED
from tests.support.train_command import TrainCommand


@pytest.mark.release
def test_a_run_killed_while_it_samples_texts_learns_them_and_teaches_goes_on(
    tmp_path: Path, prefect_api_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, folder = RunLayout("tiny"), tmp_path / "store"
    command = TrainCommand(tmp_path, "tiny", DISTILLED, PREFECT_API_URL=prefect_api_url)
    rollouts, texts, trained = (layout.sft(1, part) for part in ("rollouts", "texts", "checkpoint"))
    grades = layout.iteration(1, "grades")
    shards = folder / rollouts
    moments: list[Callable[[], bool]] = [
        lambda: any(shards.glob("progress-*/rollouts-*.parquet")),  # the teacher samples
        (folder / texts / "manifest.json").exists,  # sft begins
        (folder / grades / "manifest.json").exists,  # teach begins
    ]
    for reached in moments:
        command.kill_when(reached)
    summary = command.finish()
    assert "texts kept, for" in command.log.read_text()
    store = Store.open(str(folder))
    assert verify(store).damaged == []

    facts = Artifact.at(store, texts, Texts).manifest.facts
    assert facts["kept"] + sum(facts["rejected"].values()) == facts["sampled"] == 48 * 8
    sft_steps = Artifact.at(store, trained, Checkpoint).manifest.facts["steps"]
    assert len(sft_steps) == 2 * -(-facts["kept"] // 8)
    batch = Artifact.at(store, layout.iteration(1, "batch"), Batch).manifest
    taught = Artifact.at(store, layout.iteration(1, "taught_grades"), Grades)
    assert batch.inputs["grades"]["digest"] == taught.manifest.digest
    measured = read_run(store, "tiny").iterations[1].facts("teach")["teacher/kl/mean"]
    assert summary["iterations"][1]["teacher_kl"] == pytest.approx(measured)

    where = ["--store", str(folder)]
    assert run_command(["lineage", "tiny@1", "--depth", "9", "--json", *where]) == 0
    keys = {node["key"] for node in json.loads(capsys.readouterr().out)["ancestors"]}
    assert {rollouts, texts, trained, layout.iteration(1, "taught_grades")} <= keys
    line = f"texts kept, for {facts['puzzles']} puzzles; rejected: "
    assert run_command(["show", "tiny", "--wide", *where]) == 0
    assert line in capsys.readouterr().out
    counts = {name: facts[name] for name in ("sampled", "kept", "rejected", "puzzles")}
    assert summary["texts"] == [counts]
    page = store.read_bytes(f"{layout.summary}/report.html").decode()
    assert "teacher KL" in page
    assert line in page
