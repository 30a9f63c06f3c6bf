"""Promotion: the best so far stands, the reason is recorded, and the pointer never goes back."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from huggingface_hub import ModelCard

from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Ref, Report
from artifacts.schemas import RESULTS
from artifacts.seal import sealed_json
from artifacts.slot import Slot
from artifacts.store import Store
from stages.gate import PromoteConfig, RollbackConfig
from stages.promote import promote, weights_after
from stages.training.launch import Weights
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


def test_a_refusal_says_why_with_intervals_over_the_best_and_over_what_stands(tmp_path: Path) -> None:
    """Skills fall: each candidate is held against the best and, where that is another, against what stands."""
    store, verdicts, _ = _decided(tmp_path, PromoteConfig(tolerance_se=1.5), (4, 3, 1, 0))
    for verdict in verdicts[1:]:
        for name in ("gain", "gain_over_standing"):
            assert verdict[name]["low"] <= verdict[name]["mean"] <= verdict[name]["high"]
        assert verdict["reason"].startswith("promoted: " if verdict["promoted"] else "refused: ")
        assert f"{verdict['gain']['mean']:+.4f} (95% interval" in verdict["reason"]
        assert "on 8 puzzles" in verdict["reason"]
    last, before = verdicts[-1], verdicts[-2]
    if before["standing"]["iteration"] != before["best"]["iteration"]:
        assert last["gain"] != last["gain_over_standing"]
        assert "which stands" in last["reason"]
    expected = _paired_mean(store, last["candidate"]["report"]["key"], before["standing"]["report"]["key"])
    assert last["gain_over_standing"]["mean"] == pytest.approx(expected)


def test_a_fallen_curve_goes_back_to_the_best_and_counts_anew(tmp_path: Path) -> None:
    rule = RollbackConfig(drop_se=0.0, patience=2)
    store, verdicts, refs = _decided(tmp_path, PromoteConfig(rollback=rule), (4, 0, 1, 0, 1))
    best = verdicts[0]["candidate"]["iteration"]
    assert [verdict["rolled_back"] for verdict in verdicts] == [False, False, True, False, True]
    assert [verdict["degraded"] for verdict in verdicts] == [0, 1, 0, 1, 0]
    assert all(verdict["standing"]["iteration"] == best for verdict in verdicts)
    assert "degraded 2 times in a row: back to iteration 0" in verdicts[2]["reason"]
    assert json.loads(store.read_bytes("pointer.json"))["iteration"] == best

    ctx = make_context(store, tmp_path)
    newest = Weights(Ref[Checkpoint](**verdicts[2]["candidate"]["checkpoint"]), reference=refs[0])
    back = weights_after(refs[2], newest, ctx)
    assert back.checkpoint.as_json() == verdicts[0]["candidate"]["checkpoint"]
    assert back.reference == newest.reference
    assert weights_after(refs[1], newest, ctx) == newest


def test_without_a_rule_nothing_is_rolled_back(tmp_path: Path) -> None:
    _, verdicts, _ = _decided(tmp_path, PromoteConfig(), (4, 0, 1, 0, 1))
    assert not any(verdict["rolled_back"] for verdict in verdicts)


def test_a_tolerant_pointer_goes_back_from_what_stands_to_the_best(tmp_path: Path) -> None:
    """What stands has drifted down within the tolerance; the rollback brings the best itself back, with its card."""
    rule = RollbackConfig(drop_se=0.0, patience=2)
    with pytest.raises(ValueError, match="below tolerance_se"):
        PromoteConfig(tolerance_se=3.0, rollback=rule)
    rule = RollbackConfig(drop_se=1.0, patience=1)
    store, verdicts, _ = _decided(tmp_path, PromoteConfig(tolerance_se=1.0, rollback=rule), (4, 3, 2, 3, 2, 0, 1, 0))
    rolled = [number for number, verdict in enumerate(verdicts) if verdict["rolled_back"]]
    assert rolled, "skill 0.4 is far below 0.72"
    for number in rolled:
        assert verdicts[number]["standing"]["checkpoint"] == verdicts[number]["best"]["checkpoint"]
        assert not verdicts[number]["promoted"]
    pointer = json.loads(store.read_bytes("pointer.json"))
    assert f"iteration {pointer['iteration']}" in store.read_bytes(pointer["model_card"]).decode() or (
        pointer["iteration"] == 0 and "before GRPO" in store.read_bytes(pointer["model_card"]).decode()
    )


def test_the_model_card_is_one_that_hugging_face_reads(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, tmp_path, iterations=3)
    pointer = json.loads(store.read_bytes(layout.promoted))
    text = store.read_bytes(pointer["model_card"]).decode()
    card = ModelCard(text)
    (result,) = [item for item in card.data.eval_results or [] if item.metric_name == "accuracy, sampled"]
    assert result.metric_value == pytest.approx(pointer["score"], abs=1e-4)
    assert card.data.library_name == "transformers"
    assert f"`{pointer['checkpoint']['key']}`" in text
    assert f"deerstalker lineage {pointer['checkpoint']['key']}" in text
    assert "before GRPO" in text


def test_readers_of_the_pointer_see_the_old_or_the_new(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    versions = [sealed_json({"decided_at_iteration": n, "padding": str(n) * 20_000}) for n in range(2)]
    store.write_bytes("promoted.json", versions[0])
    stop, seen = threading.Event(), list[bytes]()

    def read() -> None:
        while not stop.is_set():
            seen.append(store.read_bytes("promoted.json"))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(200):
        store.write_bytes("promoted.json", versions[n % 2])
    stop.set()
    reader.join()
    assert seen and all(data in versions for data in seen)


def _decided(
    folder: Path, config: PromoteConfig, skills: Sequence[int]
) -> tuple[Store, list[dict[str, Any]], list[Ref[Decision]]]:
    """Decisions on candidates that are iterations of a made run, whose skill rises with their number."""
    store = Store.open(str(folder / "store"))
    layout = make_run(store, folder, iterations=4)
    ctx = make_context(store, folder)
    decisions: list[Ref[Decision]] = []
    for iteration, number in enumerate(skills):
        report: Ref[Report] = Artifact.at(store, layout.iteration(number, "report")).ref
        decisions.append(
            promote(
                config,
                Ref[Checkpoint](**Artifact.open(store, report).manifest.inputs["weights"]),
                report,
                decisions[-1] if decisions else None,
                iteration=iteration,
                pointer="pointer.json",
                out=Slot(store, f"decided/{iteration}", Decision),
                ctx=ctx,
            )
        )
    return store, [Artifact.open(store, ref).read_json("decision.json") for ref in decisions], decisions


def _paired_mean(store: Store, key: str, other: str) -> float:
    means = [
        dict(
            Artifact.at(store, one)
            .read_table("results.parquet", RESULTS)
            .filter(pl.col("mode") == "sampled")
            .group_by("puzzle_id")
            .agg(pl.col("accuracy").mean())
            .iter_rows()
        )
        for one in (key, other)
    ]
    return sum(means[0][puzzle] - means[1][puzzle] for puzzle in means[0]) / len(means[0])
