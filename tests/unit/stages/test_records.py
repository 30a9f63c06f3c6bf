"""The JSON documents of decisions and reports: written and read into one model each."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Decision, Ref
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from stages.promote import promoted_checkpoint
from stages.statistics.estimates import estimate_difference, estimate_gain
from stages.statistics.records import PromotionDecision, ReportFigures, read_decision
from tests.support.contexts import make_context
from tests.support.made_run import make_run

CHECKPOINT = {"kind": "Checkpoint", "key": "runs/a/checkpoint", "digest": "c" * 64}
REPORT = {"kind": "Report", "key": "runs/a/report", "digest": "d" * 64}
PLACE = {"checkpoint": CHECKPOINT, "report": REPORT, "iteration": 3, "score": 0.5}
INTERVAL = {"mean": 0.1, "low": -0.2, "high": 0.4}
DECISION = {
    "promoted": True,
    "rolled_back": False,
    "reason": "promoted: better",
    "gain": INTERVAL,
    "gain_over_standing": INTERVAL,
    "degraded": 0,
    "standing": {**PLACE, "decided_in": "runs/a/decision"},
    "best": PLACE,
    "first": PLACE,
    "candidate": PLACE,
    "candidates": 4,
    "curve": [{"iteration": 2, "score": 0.4, "noise": None}, {"iteration": 3, "score": 0.5, "noise": 0.001}],
}
"""A decision as it is stored, with its keys in that order."""


@pytest.mark.parametrize("absent", [[], ["curve"], ["gain", "gain_over_standing", "curve"], ["gain", "curve"]])
def test_a_decision_is_written_as_it_was_read(absent: list[str]) -> None:
    content = {name: value for name, value in DECISION.items() if name not in absent}
    decision = PromotionDecision.of(content, "decision")
    assert json.dumps(decision.as_json()) == json.dumps(content)
    assert decision.standing.checkpoint == Ref(**CHECKPOINT)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], "content"),
        ({**DECISION, "best": {**PLACE, "score": "high"}}, "best.score"),
        ({name: value for name, value in DECISION.items() if name != "standing"}, "standing"),
    ],
)
def test_a_document_that_is_no_decision_is_refused(tmp_path: Path, content: Any, problem: str) -> None:
    store = Store.open(str(tmp_path))
    attempt = ArtifactAddress(store, "decision", Decision).attempt(Identity.of("promote", 3, {}))
    attempt.write_json("decision.json", content)
    with pytest.raises(IntegrityError, match=rf"decision/decision\.json: {problem}: "):
        read_decision(attempt.publish({}), store)


def test_a_run_s_documents_are_read_and_written_alike(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=2)
    decision: Ref[Decision] = Artifact.at(store, layout.iteration(2, "decision")).ref
    stored = Artifact.open(store, decision).read_bytes("decision.json")
    content = read_decision(decision, store).as_json()
    assert json.dumps(content, indent=2, ensure_ascii=False) + "\n" == stored.decode()
    assert promoted_checkpoint(decision, make_context(store, tmp_path)).as_json() == content["standing"]["checkpoint"]
    facts = Artifact.at(store, layout.iteration(2, "report")).manifest.facts
    assert json.dumps(ReportFigures.of(facts, "report").as_json()) == json.dumps(facts)
    assert "early_stopped_fraction" not in facts["sampled"]


def test_a_gain_is_measured_on_the_puzzles_that_both_evaluations_hold(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=2)
    results, others = (
        Artifact.at(store, layout.iteration(n, "report")).read_table("results.parquet", RESULTS) for n in (2, 0)
    )
    puzzles = results["prompt_id"].unique(maintain_order=True).to_list()
    some = others.filter(pl.col("prompt_id").is_in(puzzles[2:]))
    differences = [_mean(results, puzzle) - _mean(others, puzzle) for puzzle in puzzles[2:]]
    gain, expected = estimate_gain(results, some, mode="sampled"), estimate_difference(differences)
    assert gain is not None
    assert (gain.mean, gain.low, gain.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert estimate_gain(results, others.head(0), mode="sampled") is None


def _mean(results: pl.DataFrame, puzzle: str) -> float:
    rows = results.filter((pl.col("prompt_id") == puzzle) & (pl.col("mode") == "sampled"))
    return rows["accuracy"].cast(pl.Float64).mean()  # pyright: ignore[reportReturnType]
