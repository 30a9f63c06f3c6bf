"""A prompt that leaves no room for an answer is found before a run samples anything: refused, or dropped and shown."""

import json
from pathlib import Path

import pytest

from artifacts.manifest import Manifest
from stages.models.from_scratch import ScratchModel, make_scratch
from tests.support.installed import ONE_ENGINE, Installation

QUESTIONS = Path(__file__).parents[1] / "support" / "questions.toml"
FOREIGN = "漢字" * 200
"""Fewer characters than the other questions, which a check of the longest texts would try, and 1,200 tokens."""


@pytest.fixture
def place(tmp_path: Path, prefect_api_url: str) -> Installation:
    """Where `train(...)` trains on 47 long questions and a foreign one, with a model of 1,024 positions."""
    asked = [f"How many are {a} and {b}?{' Think well.' * 40}" for a in range(7) for b in range(7)]
    (tmp_path / "model").mkdir()
    make_scratch(ScratchModel(hidden=32, heads=1, kv_heads=1, layers=1, intermediate=64), asked, tmp_path / "model")
    rows = [{"question": question, "answer": 1} for question in [*asked[:47], FOREIGN]]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Installation(tmp_path, PREFECT_API_URL=prefect_api_url)


def train(place: Installation, *settings: str) -> tuple[str, ...]:
    words = ['model={source="folder", path="model"}', "evaluate.puzzles=7", "final.puzzles=7", "pack.row_tokens=2048"]
    words += ["warm_start.texts_per_step=15", "warm_start.row_tokens=2048", *settings]
    store = ("--store", str(place.store), "--profile", str(ONE_ENGINE), "--json")
    return ("train", "--recipe", str(QUESTIONS), "--run", "mine", *store, *(f"--set={word}" for word in words))


@pytest.mark.long
def test_a_long_prompt_is_refused_before_the_run_writes_anything(place: Installation) -> None:
    done = place.attempt("deerstalker", *train(place))
    assert done.returncode == 2, done.stderr
    assert "a prompt of 12" in done.stderr and 'set puzzles.overlong = "drop"' in done.stderr
    assert not (place.store / "runs").exists(), "so the name of the run is free"


@pytest.mark.release
def test_too_few_puzzles_after_dropping_are_refused_too(place: Installation) -> None:
    sizes = ("warm_start.texts_per_step=16", "evaluate.puzzles=8", "final.puzzles=8")  # all of each split
    done = place.attempt("deerstalker", *train(place, "puzzles.overlong=drop", *sizes))
    assert done.returncode == 2 and "error: puzzles without overlong prompts: " in done.stderr, done.stderr
    (manifest,) = place.store.glob("puzzles/shorter-*/manifest.json")
    assert sum(Manifest.from_bytes(manifest.read_bytes(), "set").facts["dropped"].values()) == 1
    assert not (place.store / "runs").exists()


@pytest.mark.release
def test_a_long_prompt_is_dropped_counted_and_shown(place: Installation) -> None:
    place.deerstalker(*train(place, "puzzles.overlong=drop"))
    (manifest,) = place.store.glob("puzzles/shorter-*/manifest.json")
    assert sum(Manifest.from_bytes(manifest.read_bytes(), "set").facts["dropped"].values()) == 1
    shown = json.loads(place.deerstalker("show", "mine", "--store", str(place.store), "--json"))
    assert sum(shown["dropped"].values()) == 1
    assert "puzzles dropped: prompts of 1024 tokens or more" in place.deerstalker(
        "show", "mine", "--store", str(place.store), "--wide"
    )
    elsewhere = train(place, "puzzles.overlong=drop")  # on a machine with less room, where the run continues
    place.deerstalker(*elsewhere, "--set-profile", "engine.max_model_len=900")
    refused = place.attempt("deerstalker", *elsewhere, "--set-profile", "engine.max_model_len=32")
    assert refused.returncode == 2 and "set engine.max_model_len as it was when the run began" in refused.stderr
    assert len(list(place.store.glob("puzzles/shorter-*/manifest.json"))) == 1
