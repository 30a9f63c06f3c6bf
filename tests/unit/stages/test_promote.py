"""Promotion: the best so far stands, the reason is recorded, and the pointer never goes back."""

import json
from pathlib import Path

from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Ref, Report
from artifacts.slot import Slot
from artifacts.store import Store
from stages.promote import PromoteConfig, promote
from tests.unit.flows.made_run import make_context, make_run


def test_the_best_so_far_stands_and_the_pointer_follows(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, tmp_path, iterations=4)
    best, standing = -1.0, 0
    for number in range(5):
        decision = Artifact.at(store, layout.iteration(number, "decision")).read_json("decision.json")
        score = decision["candidate"]["score"]
        assert decision["promoted"] == (score > best)
        if score > best:
            best, standing = score, number
        assert (decision["standing"]["iteration"], decision["standing"]["score"]) == (standing, best)
    pointer = json.loads(store.read_bytes(layout.promoted))
    assert (pointer["decided_at_iteration"], pointer["iteration"]) == (4, standing)


def test_the_newest_as_good_as_the_best_stands(tmp_path: Path) -> None:
    """With a tolerance what stands may be newer than the best; others are held against the best all the same."""
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, tmp_path, iterations=4)
    ctx = make_context(store, tmp_path)
    before: Ref[Decision] | None = None
    best = -1.0
    for number in (4, 1, 3, 0):  # skills 0.72, 0.48, 0.64, 0.4
        report: Ref[Report] = Artifact.at(store, layout.iteration(number, "report")).ref
        checkpoint = Ref[Checkpoint](**Artifact.open(store, report).manifest.inputs["weights"])
        before = promote(
            PromoteConfig(tolerance_se=2.0),
            checkpoint,
            report,
            before,
            iteration=number,
            pointer="pointer.json",
            out=Slot(store, f"tolerant/{number}", Decision),
            ctx=ctx,
        )
        verdict = Artifact.open(store, before).read_json("decision.json")
        best = max(best, verdict["candidate"]["score"])
        assert verdict["best"]["score"] == best
        if "gain" in verdict:
            half = (verdict["gain"]["high"] - verdict["gain"]["mean"]) / 1.959963984540054
            assert verdict["promoted"] == (verdict["gain"]["mean"] > -2.0 * half)
            assert (verdict["standing"]["iteration"] == number) == verdict["promoted"]


def test_deciding_again_changes_nothing_and_does_not_move_the_pointer_back(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, tmp_path, iterations=3)
    before = store.read_bytes(layout.promoted)

    def ref(part: str, number: int) -> Ref[Checkpoint]:
        return Artifact.at(store, layout.iteration(number, part)).ref

    report: Ref[Report] = Artifact.at(store, layout.iteration(1, "report")).ref
    incumbent: Ref[Decision] = Artifact.at(store, layout.iteration(0, "decision")).ref
    decision = promote(
        PromoteConfig(),
        ref("checkpoint", 1),
        report,
        incumbent,
        iteration=1,
        pointer=layout.promoted,
        out=Slot(store, layout.iteration(1, "decision"), Decision),
        ctx=make_context(store, tmp_path),
    )
    assert decision.reused
    assert store.read_bytes(layout.promoted) == before


def test_a_candidate_must_beat_the_incumbent_by_more_than_the_bar(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, tmp_path, iterations=2)
    last = Artifact.at(store, layout.iteration(2, "decision"))
    strict = promote(
        PromoteConfig(min_gain=1.0),
        Artifact.at(store, layout.iteration(2, "checkpoint")).ref,
        Artifact.at(store, layout.iteration(2, "report")).ref,
        Artifact.at(store, layout.iteration(1, "decision")).ref,
        iteration=2,
        pointer=layout.promoted,
        out=Slot(store, "elsewhere", Decision),
        ctx=make_context(store, tmp_path),
    )
    verdict = Artifact.open(store, strict).read_json("decision.json")
    assert not verdict["promoted"]
    assert "not more than 1" in verdict["reason"]
    assert last.read_json("decision.json")["candidate"] == verdict["candidate"]
