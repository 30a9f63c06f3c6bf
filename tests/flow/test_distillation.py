"""A run with texts of a teacher and a teacher of tokens, killed in three of these stages, then finished."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, Texts
from artifacts.store.store import Store
from artifacts.verification import verify
from flows.cli.app import run_command
from flows.lookup.history import read_run
from tests.support.installed import ONE_ENGINE, TINY
from tests.support.waiting import changes, output_of, wait_until

LIMIT_S = 300
SETTINGS = (
    "iterations=1", "warm_start.epochs=16", "distil.sample.puzzles_per_iteration=48",
    "distil.sample.sampling={samples_per_prompt = 8, max_tokens = 64}", "distil.texts.keep=best",
    "distil.sample.order={by = 'ascending', column = 'num_clues'}",
    "distil.sample.where=[{all = [{column = 'num_clues', above = 0}]}]",
    "distil.sft={texts_per_step = 8, epochs = 2, learning_rate = 1e-3}", "teach.hint=derivation",
)  # fmt: skip


def command(store: Path) -> list[str]:
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    deerstalker = str(Path(sys.executable).with_name("deerstalker"))
    where = ["--recipe", str(TINY), "--run", "tiny", "--profile", str(ONE_ENGINE), "--store", str(store)]
    return [deerstalker, "train", *where, "--json", *words]


def manifests(store: Path) -> dict[str, Manifest]:
    found = {str(path.parent.relative_to(store)): path for path in store.rglob("manifest.json")}
    return {key: Manifest.from_bytes(path.read_bytes(), key) for key, path in found.items()}


def start(folder: Path, prefect_api_url: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PREFECT_API_URL": prefect_api_url}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command(folder / "store"), stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=environment
        )


def kill_when(reached: Callable[[], bool], folder: Path, prefect_api_url: str) -> None:
    process = start(folder, prefect_api_url)

    def seen() -> bool:
        assert process.poll() is None, (folder / "log.txt").read_text()[-3000:]
        return reached()

    wait_until(seen, LIMIT_S, lambda: (folder / "log.txt").read_text()[-3000:], 0.005, lambda: changes(folder))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.long
def test_a_run_killed_while_it_samples_texts_learns_them_and_teaches_goes_on(
    tmp_path: Path, prefect_api_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, folder = RunLayout("tiny"), tmp_path / "store"
    rollouts, texts, trained = (layout.distillation(1, part) for part in ("rollouts", "texts", "checkpoint"))
    grades = layout.iteration(1, "grades")
    seen: dict[str, str] = {}
    shards = folder / rollouts
    moments: list[Callable[[], bool]] = [
        lambda: any(shards.glob("progress-*/rollouts-*.parquet")),  # the teacher samples
        (folder / texts / "manifest.json").exists,  # sft begins
        (folder / grades / "manifest.json").exists,  # teach begins
    ]
    for reached in moments:
        kill_when(reached, tmp_path, prefect_api_url)
        for key, manifest in manifests(folder).items():
            assert seen.setdefault(key, manifest.attempt) == manifest.attempt, f"{key} was made again"
    process = start(tmp_path, prefect_api_url)
    output, _ = output_of(process, LIMIT_S, tmp_path)
    assert process.returncode == 0, (tmp_path / "log.txt").read_text()[-3000:]
    assert "texts kept, for" in (tmp_path / "log.txt").read_text()
    summary: dict[str, Any] = json.loads(output)
    after = manifests(folder)
    assert {key: after[key].attempt for key in seen} == seen
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
