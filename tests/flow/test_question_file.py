"""A whole run on the user's own questions: it trains, and goes on without its file, but not with another."""

import json
from pathlib import Path

import pytest

from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.schemas import GRADES, GRADES_FILE
from artifacts.store.store import Store
from tests.support.installed import ONE_ENGINE, Installation

QUESTIONS = Path(__file__).parents[1] / "support" / "questions.toml"


@pytest.mark.release
def test_a_run_on_questions_from_a_file(tmp_path: Path, prefect_api_url: str) -> None:
    rows = [{"question": f"How many are {a} and {b}?", "answer": a + b} for a in range(8) for b in range(8)]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = Installation(tmp_path, PREFECT_API_URL=prefect_api_url)
    store = ("--store", str(place.store), "--profile", str(ONE_ENGINE), "--json")
    train = ("train", "--recipe", str(QUESTIONS), "--run", "mine", *store)

    place.deerstalker(*train)
    manifests = {path: path.read_bytes() for path in place.store.rglob("manifest.json")}
    grades = Artifact.at(Store.open(str(place.store)), "runs/mine/iterations/0001/grades").read_table(
        GRADES_FILE, GRADES
    )
    assert grades["grader"].unique().to_list() == ["number"]
    assert all(list(json.loads(answers)) == ["answer"] for answers in grades["answers"])

    whole = file.read_bytes()
    file.write_bytes(whole + b'{"question": "How many are 9 and 9?", "answer": 18}\n')
    changed = place.attempt("deerstalker", *train)
    assert changed.returncode == 2 and "questions.jsonl: changed since the run began" in changed.stderr

    file.unlink()  # as on another machine
    continued = place.attempt("deerstalker", "iterate", "mine", "--more", "1", *store)
    assert continued.returncode == 0, continued.stderr[-2000:]
    assert "warning: questions.jsonl is not read; using the set made from it: puzzles/set-" in continued.stderr
    after = {path: path.read_bytes() for path in place.store.rglob("manifest.json")}
    assert {path: after[path] for path in manifests} == manifests
    report = Manifest.from_bytes((place.part("mine", 2, "report") / "manifest.json").read_bytes(), "report")
    assert report.facts["grader"] == "number"
    assert report.facts["puzzles"] == 8
