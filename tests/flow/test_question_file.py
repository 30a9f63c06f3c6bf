"""A whole run on the user's own questions: it trains and goes on without its file."""

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

    file.unlink()  # as on another machine
    place.deerstalker("iterate", "mine", "--more", "1", *store)
    after = {path: path.read_bytes() for path in place.store.rglob("manifest.json")}
    assert {path: after[path] for path in manifests} == manifests
    report = Manifest.from_bytes((place.part("mine", 2, "report") / "manifest.json").read_bytes(), "report")
    assert report.facts["grader"] == "number"
    assert report.facts["puzzles"] == 8
