"""Promotion: the best so far stands, the reason is recorded, and the pointer never goes back."""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import polars as pl
import pytest
from huggingface_hub import ModelCard

from artifacts.address import ArtifactAddress
from artifacts.documents.self_checksum import sealed_json
from artifacts.errors import IntegrityError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME, state_key
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, OptimizerState, Ref, Report
from artifacts.schemas import RESULTS
from artifacts.store.store import Store
from stages.promote import promote, weights_after
from stages.promotion.gate import PromoteConfig, RollbackConfig, decide
from stages.promotion.promoted import read_promoted, write_promoted
from stages.statistics.estimates import estimate_difference
from stages.statistics.records import MeasuredCheckpoint, PromotionDecision
from stages.training.launch import Weights
from stages.training.saved_state import STATE_FOLLOWS
from tests.support.contexts import make_context
from tests.support.made_run import make_run


def test_the_best_so_far_stands_and_the_pointer_follows(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=4)
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


@pytest.mark.parametrize("damage", [b"", b'{"checkpoint": {', b"[]"])
def test_a_damaged_pointer_is_written_anew_from_the_decision(tmp_path: Path, damage: bytes) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=1)
    whole = store.read_bytes(layout.promoted)
    store.write_bytes(layout.promoted, damage)
    report: Ref[Report] = Artifact.at(store, layout.iteration(1, "report")).ref
    decision = Artifact.at(store, layout.iteration(1, "decision"))
    promote(
        make_context(store, tmp_path),
        PromoteConfig(),
        Ref(**decision.manifest.inputs["candidate"]),
        report,
        Artifact.at(store, layout.iteration(0, "decision")).ref,
        iteration=1,
        pointer=layout.promoted,
        out=ArtifactAddress(store, decision.key, Decision),
    )
    assert store.read_bytes(layout.promoted) == whole


def test_the_newest_as_good_as_the_best_stands(tmp_path: Path) -> None:
    """With a tolerance what stands may be newer than the best; others are held against the best all the same."""
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=4)
    ctx = make_context(store, tmp_path)
    before: Ref[Decision] | None = None
    best, highest = -1.0, dict[str, Any]()
    for number in (4, 1, 3, 0):  # skills 0.72, 0.48, 0.64, 0.4
        report: Ref[Report] = Artifact.at(store, layout.iteration(number, "report")).ref
        checkpoint = Ref[Checkpoint](**Artifact.open(store, report).manifest.inputs["weights"])
        before = promote(
            ctx,
            PromoteConfig(tolerance_se=2.0),
            checkpoint,
            report,
            before,
            iteration=number,
            pointer="pointer.json",
            out=ArtifactAddress(store, f"tolerant/{number}", Decision),
        )
        verdict = Artifact.open(store, before).read_json("decision.json")
        best = max(best, verdict["candidate"]["score"])
        assert verdict["best"]["score"] == best
        if "gain" in verdict:
            differences = _differences(store, report.key, highest["report"]["key"])
            bar = -2.0 * stdev(differences) / len(differences) ** 0.5
            assert verdict["promoted"] == (fmean(differences) >= bar)
            assert f"{'at least' if verdict['promoted'] else 'below'} {bar:.3g}" in verdict["reason"]
            assert (verdict["standing"]["iteration"] == number) == verdict["promoted"]
        highest = verdict["best"]


@pytest.mark.parametrize(("config", "stands"), [(PromoteConfig(tolerance_se=1.0), 1), (PromoteConfig(), 0)])
def test_equal_results_are_as_good_as_the_best_and_not_better(
    tmp_path: Path, config: PromoteConfig, stands: int
) -> None:
    """The same answers twice: gain 0 with error 0 is at most a standard error below, and not more than nothing."""
    _, verdicts, _ = _decided(tmp_path, config, (2, 2))
    assert verdicts[1]["gain"]["mean"] == 0.0
    assert verdicts[1]["promoted"] == bool(stands)
    assert verdicts[1]["standing"]["iteration"] == stands
    assert ("at least 0" if stands else "not more than 0") in verdicts[1]["reason"]


def test_deciding_again_changes_nothing_and_does_not_move_the_pointer_back(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=3)
    before = store.read_bytes(layout.promoted)

    def ref(part: str, number: int) -> Ref[Checkpoint]:
        return Artifact.at(store, layout.iteration(number, part)).ref

    report: Ref[Report] = Artifact.at(store, layout.iteration(1, "report")).ref
    incumbent: Ref[Decision] = Artifact.at(store, layout.iteration(0, "decision")).ref
    decision = promote(
        make_context(store, tmp_path),
        PromoteConfig(),
        ref("checkpoint", 1),
        report,
        incumbent,
        iteration=1,
        pointer=layout.promoted,
        out=ArtifactAddress(store, layout.iteration(1, "decision"), Decision),
    )
    assert decision.reused
    assert store.read_bytes(layout.promoted) == before


def test_a_candidate_must_beat_the_incumbent_by_more_than_the_bar(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=2)
    last = Artifact.at(store, layout.iteration(2, "decision"))
    strict = promote(
        make_context(store, tmp_path),
        PromoteConfig(min_gain=1.0),
        Artifact.at(store, layout.iteration(2, "checkpoint")).ref,
        Artifact.at(store, layout.iteration(2, "report")).ref,
        Artifact.at(store, layout.iteration(1, "decision")).ref,
        iteration=2,
        pointer=layout.promoted,
        out=ArtifactAddress(store, "elsewhere", Decision),
    )
    verdict = Artifact.open(store, strict).read_json("decision.json")
    assert not verdict["promoted"]
    assert "not more than 1" in verdict["reason"]
    assert last.read_json("decision.json")["candidate"] == verdict["candidate"]


def test_a_refusal_says_why_with_intervals_over_the_best_and_over_what_stands(tmp_path: Path) -> None:
    """Skills fall: each candidate is held against the best and, where that is another, against what stands."""
    store, verdicts, _ = _decided(tmp_path, PromoteConfig(tolerance_se=1.5), (4, 3, 1, 0))
    best_before = verdicts[0]["best"]
    for verdict in verdicts[1:]:
        for name in ("gain", "gain_over_standing"):
            assert verdict[name]["low"] <= verdict[name]["mean"] <= verdict[name]["high"]
        assert verdict["reason"].startswith("promoted: " if verdict["promoted"] else "refused: ")
        assert f"{verdict['gain']['mean']:+.4f} (95% interval" in verdict["reason"]
        assert "on 8 puzzles" in verdict["reason"]
    for chosen_of, verdict in enumerate(verdicts[1:], start=1):
        differences = _differences(store, verdict["candidate"]["report"]["key"], best_before["report"]["key"])
        assert verdict["gain"] == asdict(estimate_difference(differences, chosen_of))
        said = f"its upper end raised because the other is the best of {chosen_of})"
        assert (said in verdict["reason"]) == (chosen_of > 1)
        best_before = verdict["best"]
    last, before = verdicts[-1], verdicts[-2]
    if before["standing"]["iteration"] != before["best"]["iteration"]:
        assert last["gain"] != last["gain_over_standing"]
        assert "promoted before" in last["reason"]
    expected = _paired_mean(store, last["candidate"]["report"]["key"], before["standing"]["report"]["key"])
    assert last["gain_over_standing"]["mean"] == pytest.approx(expected)


def test_a_fallen_curve_goes_back_to_the_best_and_counts_anew(tmp_path: Path) -> None:
    rule = RollbackConfig(drop_se=0.0, patience=2)
    store, verdicts, refs = _decided(tmp_path, PromoteConfig(rollback=rule), (4, 0, 1, 0, 1))
    best = verdicts[0]["candidate"]["iteration"]
    assert [verdict["rolled_back"] for verdict in verdicts] == [False, False, True, False, True]
    assert [verdict["degraded"] for verdict in verdicts] == [0, 0, 2, 0, 2]
    assert [[item["iteration"] for item in verdict["curve"]] for verdict in verdicts] == [[0], [0, 1], [0], [0, 3], [0]]
    assert all(verdict["standing"]["iteration"] == best for verdict in verdicts)
    scores = [verdict["candidate"]["score"] for verdict in verdicts]
    drop = scores[0] - (scores[1] + scores[2]) / 2
    assert f"fallen: the mean of the last 2 is {drop:.4f} below that of the 1 before" in verdicts[2]["reason"]
    assert verdicts[2]["reason"].endswith("that noise reaches: back to iteration 0")
    assert json.loads(store.read_bytes("pointer.json"))["iteration"] == best

    ctx = make_context(store, tmp_path)
    newest = Weights(Ref[Checkpoint](**verdicts[2]["candidate"]["checkpoint"]), reference=refs[0])
    back = weights_after(refs[2], newest, ctx)
    assert back.checkpoint.as_json() == verdicts[0]["candidate"]["checkpoint"]
    assert back.reference == back.checkpoint, "the first weights are the reference of the first iteration"
    assert weights_after(refs[2], newest, ctx, since=2).reference == newest.reference, "that of a later phase stays"
    first = Artifact.open(store, back.checkpoint)
    manifest = first.manifest.model_copy(update={"facts": {STATE_FOLLOWS: True}})
    store.write_bytes(f"{first.key}/{MANIFEST_NAME}", manifest.to_bytes())
    assert weights_after(refs[2], newest, ctx).state is None, "the first weights may be a trained one of another run"
    assert weights_after(refs[1], newest, ctx) == newest


def test_a_rollback_restores_no_state_from_before_a_fresh_optimizer(tmp_path: Path) -> None:
    """The state of iteration 1 has been published; a phase began with a fresh optimizer in iteration 2."""
    rule = RollbackConfig(drop_se=0.0, patience=2)
    store, verdicts, refs = _decided(tmp_path, PromoteConfig(rollback=rule), (2, 4, 1, 0))
    assert verdicts[3]["rolled_back"] and verdicts[3]["standing"]["iteration"] == 1
    back = Artifact.at(store, verdicts[1]["candidate"]["checkpoint"]["key"], Checkpoint)
    key = state_key(back.key)
    assert key is not None
    manifest = back.manifest.model_copy(update={"facts": {STATE_FOLLOWS: True}})
    store.write_bytes(f"{back.key}/{MANIFEST_NAME}", manifest.to_bytes())
    attempt = ArtifactAddress(store, key, OptimizerState).attempt(Identity.of("finetune", 1, {"n": 1}))
    attempt.write_bytes("state", b"1")
    state, ctx = attempt.publish(checkpoint=back.ref), make_context(store, tmp_path)
    newest = Weights(Ref[Checkpoint](**verdicts[3]["candidate"]["checkpoint"]))
    assert weights_after(refs[3], newest, ctx).state == state
    assert weights_after(refs[3], newest, ctx, states_since=2) == replace(newest, checkpoint=back.ref)


def test_a_rollback_leaves_the_reference_that_was_made_of_the_fallen_weights(tmp_path: Path) -> None:
    rule = RollbackConfig(drop_se=0.0, patience=2)
    store, verdicts, refs = _decided(tmp_path, PromoteConfig(rollback=rule), (2, 4, 1, 0))
    fallen, first = (Ref[Checkpoint](**verdicts[number]["candidate"]["checkpoint"]) for number in (3, 0))
    back = Artifact.at(store, verdicts[1]["candidate"]["checkpoint"]["key"], Checkpoint)
    manifest = back.manifest.model_copy(update={"inputs": {**back.manifest.inputs, "reference": first.as_json()}})
    store.write_bytes(f"{back.key}/{MANIFEST_NAME}", manifest.to_bytes())
    ctx, newest = make_context(store, tmp_path), Weights(fallen, reference=fallen)
    assert weights_after(refs[3], newest, ctx).reference == first
    assert weights_after(refs[3], newest, ctx, since=2).reference == fallen, "the promoted one is of an earlier phase"
    assert weights_after(refs[3], replace(newest, reference=None), ctx).reference is None


def test_without_a_rule_nothing_is_rolled_back(tmp_path: Path) -> None:
    _, verdicts, _ = _decided(tmp_path, PromoteConfig(), (4, 0, 1, 0, 1))
    assert not any(verdict["rolled_back"] for verdict in verdicts)
    assert not any("curve" in verdict for verdict in verdicts), "nobody would read it"


def test_a_curve_begins_anew_where_the_puzzles_change(tmp_path: Path) -> None:
    rule = RollbackConfig(drop_se=0.0, patience=1)
    store, verdicts, _ = _decided(tmp_path, PromoteConfig(rollback=rule), (4, 3))
    table = Artifact.at(store, verdicts[1]["candidate"]["report"]["key"]).read_table("results.parquet", RESULTS)
    attempt = ArtifactAddress(store, "fewer", Report).attempt(Identity.of("evaluate", 1, {}))
    attempt.write_table("results.parquet", table.filter(pl.col("prompt_id") != table["prompt_id"][0]), RESULTS)
    candidate = MeasuredCheckpoint.model_validate(verdicts[1]["candidate"])
    fewer = candidate.model_copy(update={"report": attempt.publish({})})
    verdict = _judged(PromoteConfig(rollback=rule), fewer, verdicts[1], store)
    assert [(item["iteration"], item["noise"]) for item in verdict["curve"]] == [(2, None)]
    assert not verdict["rolled_back"]


def test_a_candidate_of_a_fallen_curve_is_not_promoted(tmp_path: Path) -> None:
    """It lies within a tolerance of the best, but not its whole stretch."""
    config = PromoteConfig(tolerance_se=1.0, rollback=RollbackConfig(drop_se=1.0, patience=2))
    store, verdicts, _ = _decided(tmp_path, PromoteConfig(), (4, 0))
    close = MeasuredCheckpoint.model_validate(verdicts[0]["candidate"])
    curve = [{"iteration": n, "score": score, "noise": 1e-4} for n, score in ((0, 0.9), (1, 0.1))]
    before = {**verdicts[1], "curve": curve, "best": {**verdicts[0]["best"], "score": 0.9}}
    verdict = _judged(config, close, before, store)
    assert verdict["gain"]["mean"] == 0.0
    assert (verdict["rolled_back"], verdict["promoted"], verdict["degraded"]) == (True, False, 2)
    assert verdict["standing"]["iteration"] == 0


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


def test_the_pointer_names_the_card_of_the_decision_that_was_made_again(tmp_path: Path) -> None:
    """`--refresh promote` publishes the same decision in another folder, and the run has gone on since."""
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=2)
    before = read_promoted(store, layout.promoted)
    assert before is not None and before.iteration == before.decided_at_iteration == 2
    decision = Artifact.at(store, layout.iteration(2, "decision"), Decision)
    store.delete(f"{decision.key}/{MANIFEST_NAME}")
    incumbent = Artifact.at(store, layout.iteration(1, "decision"), Decision).ref
    again = promote(
        make_context(store, tmp_path), PromoteConfig(), before.checkpoint, before.report, incumbent, iteration=2,
        pointer=layout.promoted, out=ArtifactAddress(store, decision.key, Decision),
    )  # fmt: skip
    assert again.digest == decision.ref.digest
    after = read_promoted(store, layout.promoted)
    assert after is not None and after.model_card != before.model_card
    assert after.model_card.startswith(f"{decision.key}/{Artifact.at(store, decision.key).manifest.attempt}/")
    assert store.exists(after.model_card)


def test_a_pointer_at_a_newer_decision_stays_while_others_are_made_again(tmp_path: Path) -> None:
    """A decision that a refresh has set aside, or one that is damaged, is made again in its own iteration."""
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=3)
    ctx, before = make_context(store, tmp_path), store.read_bytes(layout.promoted)
    newest = Artifact.at(store, layout.iteration(3, "decision"))
    store.write_bytes(f"{newest.key}/{newest.manifest.attempt}/decision.json", b"")
    first = Artifact.at(store, layout.iteration(1, "decision"), Decision)
    report: Ref[Report] = Artifact.at(store, layout.iteration(1, "report")).ref
    incumbent = Artifact.at(store, layout.iteration(0, "decision"), Decision).ref
    again = promote(
        ctx, PromoteConfig(), Ref(**first.manifest.inputs["candidate"]), report, incumbent, iteration=1,
        pointer=layout.promoted, out=ArtifactAddress(store, first.key, Decision),
    )  # fmt: skip
    assert again.reused and store.read_bytes(layout.promoted) == before


def test_the_model_card_is_one_that_hugging_face_reads(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store, iterations=3)
    pointer = json.loads(store.read_bytes(layout.promoted))
    text = store.read_bytes(pointer["model_card"]).decode()
    card = ModelCard(text)
    (result,) = [item for item in card.data.eval_results or [] if item.metric_name == "accuracy, sampled"]
    assert result.metric_value == pytest.approx(pointer["score"], abs=1e-4)
    assert card.data.library_name == "transformers"
    assert f"`{pointer['checkpoint']['key']}`" in text
    assert f"deerstalker lineage {pointer['checkpoint']['key']}" in text
    assert "before GRPO" in text and "logic puzzles" in text


def test_the_model_card_of_a_warm_start_which_runs_share_names_the_run_that_promoted_it(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    pointer = json.loads(store.read_bytes(make_run(store, iterations=0).promoted))
    assert pointer["checkpoint"]["key"].startswith("models/")
    assert "\n# made, before GRPO\n" in store.read_bytes(pointer["model_card"]).decode()


def test_the_pointer_is_read_as_it_was_written_and_one_without_a_field_is_refused(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    ref = {"kind": "Checkpoint", "key": "runs/r/iterations/0001/checkpoint", "digest": "0" * 64}
    written = {
        "decided_at_iteration": 2, "decision": {**ref, "kind": "Decision"}, "checkpoint": ref,
        "report": {**ref, "kind": "Report"}, "iteration": 1, "score": 0.5, "model_card": "runs/r/card.md",
    }  # fmt: skip
    store.write_bytes("promoted.json", sealed_json(written))
    promoted = read_promoted(store, "promoted.json")
    assert promoted is not None and promoted.checkpoint == Ref(**ref)
    assert list(promoted.as_json()) == [*written, "checksum"]
    write_promoted(promoted.model_copy(update={"checksum": ""}), store, "again.json")
    assert store.read_bytes("again.json") == store.read_bytes("promoted.json")
    for name in ("decided_at_iteration", "decision", "checkpoint", "report", "iteration", "score"):
        store.write_bytes("promoted.json", sealed_json({key: written[key] for key in written if key != name}))
        with pytest.raises(IntegrityError, match=rf"promoted.json: {name}: .*run again"):
            read_promoted(store, "promoted.json")
    assert read_promoted(store, "none.json") is None


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


def test_equal_totals_are_not_better(tmp_path: Path) -> None:
    """The sum of the differences of accuracies k/6 is 0 only but for rounding."""
    store, draw = Store.open(str(tmp_path / "store")), np.random.default_rng(0)
    layout = make_run(store, iterations=1)
    report = Artifact.at(store, layout.iteration(1, "report"))
    sampled = report.read_table("results.parquet", RESULTS).filter(pl.col("mode") == "sampled")
    decision: PromotionDecision | None = None
    for number in range(20):
        counts = draw.permutation(np.arange(len(sampled)) % 7) / 6
        attempt = ArtifactAddress(store, f"equal/{number}", Report).attempt(Identity.of("evaluate", 1, {"of": number}))
        attempt.write_table("results.parquet", sampled.with_columns(accuracy=pl.Series(counts)), RESULTS)
        made = attempt.publish({})
        checkpoint = Ref[Checkpoint](**report.manifest.inputs["weights"])
        decision = decide(PromoteConfig(), checkpoint, made, number, decision, store)
        assert decision.promoted == (number == 0), decision.reason
        assert decision.best.iteration == 0


def _decided(
    folder: Path, config: PromoteConfig, skills: Sequence[int]
) -> tuple[Store, list[dict[str, Any]], list[Ref[Decision]]]:
    """Decisions on candidates that are iterations of a made run, whose skill rises with their number."""
    store = Store.open(str(folder / "store"))
    layout = make_run(store, iterations=4)
    ctx = make_context(store, folder)
    decisions: list[Ref[Decision]] = []
    for iteration, number in enumerate(skills):
        report: Ref[Report] = Artifact.at(store, layout.iteration(number, "report")).ref
        decisions.append(
            promote(
                ctx,
                config,
                Ref[Checkpoint](**Artifact.open(store, report).manifest.inputs["weights"]),
                report,
                decisions[-1] if decisions else None,
                iteration=iteration,
                pointer="pointer.json",
                out=ArtifactAddress(store, f"decided/{iteration}", Decision),
            )
        )
    return store, [Artifact.open(store, ref).read_json("decision.json") for ref in decisions], decisions


def _judged(
    config: PromoteConfig, challenger: MeasuredCheckpoint, before: dict[str, Any], store: Store
) -> dict[str, Any]:
    """The decision on a candidate of iteration 2, as it would be stored."""
    decision = PromotionDecision.model_validate(before)
    return decide(config, challenger.checkpoint, challenger.report, 2, decision, store).as_json()


def _paired_mean(store: Store, key: str, other: str) -> float:
    return fmean(_differences(store, key, other))


def _differences(store: Store, key: str, other: str) -> list[float]:
    """Differences of two reports, puzzle by puzzle, in the order of the first."""
    means = [
        dict(
            Artifact.at(store, one)
            .read_table("results.parquet", RESULTS)
            .filter(pl.col("mode") == "sampled")
            .group_by("prompt_id", maintain_order=True)
            .agg(pl.col("accuracy").mean())
            .iter_rows()
        )
        for one in (key, other)
    ]
    return [means[0][puzzle] - means[1][puzzle] for puzzle in means[0]]
