"""A run on a mixture, measured on a suite of the user: figures of each environment in both, and a heat map."""

import json
from pathlib import Path

import pytest

from artifacts.reading import Artifact
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from tests.support.installed import ONE_ENGINE, Installation

MIXTURE = Path(__file__).parents[1] / "support" / "mixture.toml"
SUITE = """\
title = "Two environments"
[puzzles]
train = 0
val = 0
test = 6
seed = 9
[puzzles.puzzle]
environment = "mixture"
parts = [{ puzzle = { fixed_cast = true } }, { puzzle = { environment = "zebra", houses = [2, 2] }, weight = 2 }]
"""
TASKS = ["temporal_clue", "zebra"]


@pytest.mark.release
def test_a_run_on_a_mixture_is_measured_on_a_suite(tmp_path: Path, prefect_api_url: str) -> None:
    suite = tmp_path / "pair.toml"
    suite.write_text(SUITE)
    place = Installation(tmp_path, PREFECT_API_URL=prefect_api_url)
    at = ("--store", str(place.store), "--profile", str(ONE_ENGINE), "--json")
    answers = ("--max-tokens", "16", "--samples", "1")

    place.deerstalker("train", "--recipe", str(MIXTURE), "--run", "mixed", *at)
    store = Store.open(str(place.store))
    report = Artifact.at(store, "runs/mixed/iterations/0001/report")
    assert sorted(report.manifest.facts["tasks"]) == TASKS
    train = Artifact.at(store, report.manifest.inputs["puzzles"]["key"]).read_table("train.parquet", PUZZLES)
    assert dict(train["environment"].value_counts().iter_rows()) == dict.fromkeys(TASKS, 24)

    done = json.loads(place.deerstalker("backfill", "mixed", "--suite", str(suite), *answers, *at))
    assert (done["suite"], done["evaluated"], list(done["runs"]["mixed"])) == ("pair", 2, ["0", "1"])
    facts = done["runs"]["mixed"]["1"]
    assert (facts["puzzles"], facts["split"]) == (6, "test"), "all of the suite"
    assert {task: figures["greedy"]["completions"] for task, figures in facts["tasks"].items()} == {
        "temporal_clue": 2,
        "zebra": 4,
    }
    page = Path(done["reports"]["mixed"].removeprefix("file://")).read_text()
    assert "<h2>Tasks</h2>" in page and "<h3>pair, greedy</h3>" in page
    again = json.loads(place.deerstalker("backfill", "mixed", "--suite", str(suite), *answers, *at))
    assert (again["evaluated"], again["cached"]) == (0, 2)

    command = ("evaluate", "--checkpoint", "mixed@1", "--suite", str(suite), *answers, *at)
    measured = json.loads(place.deerstalker(*command))
    assert measured["puzzles"] == 6 and sorted(measured["tasks"]) == TASKS
    assert measured["tasks"]["zebra"]["greedy"]["completions"] == 4
