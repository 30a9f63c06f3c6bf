"""Lineage, diff, prune, verify and report, on a made store and through the command line."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts import verification
from artifacts.address import ArtifactAddress
from artifacts.documents.checksums import SUMS_NAME, sums_of, write_files
from artifacts.documents.self_checksum import sealed_json
from artifacts.errors import BadInputError, IntegrityError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME, RunLayout, manifest_key
from artifacts.lineage import lineage
from artifacts.reading import Artifact
from artifacts.refresh import Refresh, Refreshes, record_done, record_request
from artifacts.refs import Batch, Checkpoint, Decision, OptimizerState, Ref, Rollouts, StepCheckpoint
from artifacts.store.store import Store
from artifacts.verification import Damage, verify
from flows.cli.app import run_command
from flows.lookup import history
from flows.lookup.history import read_run
from flows.report.html.run_report import report_files
from flows.report.run_view import RunView
from flows.upkeep import retention
from flows.upkeep.removal import remove
from flows.upkeep.retention import Retention, plan
from stages.training.saved_state import STATE_FOLLOWS
from tests.support.made_run import copied_store, make_run

ALL = ("optimizer_state", "checkpoint", "reference", "batch", "rollouts")


@pytest.fixture
def linked(linked_folder: Path, tmp_path: Path) -> tuple[Store, RunLayout]:
    """A store with the runs `made` and `linked`, to be changed at will."""
    shutil.copytree(linked_folder, tmp_path / "store")
    return Store.open(str(tmp_path / "store")), RunLayout("linked")


@pytest.fixture(scope="module")
def linked_folder(made: tuple[Store, RunLayout], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose checkpoints descend from one another as real ones do; iteration 3 of 6 is promoted."""
    tmp_path = tmp_path_factory.mktemp("linked")
    store, layout = copied_store(made[0], tmp_path / "store"), RunLayout("linked")
    make_run(store, run="linked", iterations=6, seed=1)
    before: dict[str, Ref[Any]] = {}
    for n in range(1, 7):
        batch = Artifact.at(store, layout.iteration(n, "batch")).ref
        store.delete(layout.iteration(n, "checkpoint"))
        inputs = {"weights": before.get("checkpoint"), "optimizer_state": before.get("state"), "batch": batch}
        identity = Identity.of("finetune", 1, {"n": n}, **inputs)
        address = ArtifactAddress(store, layout.iteration(n, "checkpoint"), Checkpoint)
        checkpoint = _publish(address, identity, 100, inputs)
        state_address = ArtifactAddress(store, layout.iteration(n, "optimizer_state"), OptimizerState)
        state = _publish(state_address, identity, 1000, {**inputs, "checkpoint": checkpoint})
        before = {"checkpoint": checkpoint, "state": state}
    pointer = json.loads(store.read_bytes(layout.promoted))
    third = Artifact.at(store, layout.iteration(3, "checkpoint")).ref
    after = Artifact.at(store, layout.evaluation("after"))
    inputs = {**after.manifest.inputs, "weights": third.as_json()}
    store.write_bytes(manifest_key(after.key), after.manifest.model_copy(update={"inputs": inputs}).to_bytes())
    decision = Artifact.open(store, Ref(**pointer["decision"]))
    content = decision.read_json("decision.json")
    for place in ("standing", "best"):
        content[place] = {**content[place], "checkpoint": third.as_json(), "iteration": 3}
    store.delete(decision.key)
    attempt = ArtifactAddress(store, decision.key, Decision).attempt(Identity.of("promote", 3, {}))
    attempt.write_json("decision.json", content)
    ref = attempt.publish(decision.manifest.facts)
    pointer |= {"checkpoint": third.as_json(), "iteration": 3, "decision": ref.as_json()}
    del pointer["checksum"]
    store.write_bytes(layout.promoted, sealed_json(pointer))
    return tmp_path / "store"


def _publish(
    address: ArtifactAddress[Any], identity: Identity, size: int, inputs: dict[str, Ref[Any] | None]
) -> Ref[Any]:
    attempt = address.attempt(identity)
    attempt.write_bytes("data.bin", identity.digest.encode() * (size // 64 + 1))
    return attempt.publish({"steps": []}, **inputs)


def test_a_path_in_a_recipe_that_begins_like_a_key_is_none(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    recipe = json.loads(store.read_bytes(layout.recipe))
    recipe["puzzles"]["puzzle"] = {"environment": "file", "path": "puzzles/my questions.jsonl"}
    write_files(store, layout.root, {"recipe.json": json.dumps(recipe).encode()})
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="regrade")
    assert (once := plan(store, rule, ["linked"])), "where all recipes are readable"
    assert plan(store, rule, ["linked", "linked"]) == once, "a name that is given twice counts once"


def test_a_manifest_that_goes_between_listing_and_reading_is_left_out(
    linked: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh removes manifests of a run that others look at."""
    store, layout = linked

    def listed_before(*arguments: Any) -> list[str]:
        keys = verification.listed(*arguments)
        store.delete(manifest_key(layout.iteration(6, "report")))
        return keys

    monkeypatch.setattr(history, "listed", listed_before)
    assert "evaluate" not in read_run(store, "linked").iterations[6].manifests
    with pytest.raises(BadInputError, match="no manifest"):
        history.read_iteration(store, layout, 6)


def test_two_writers_of_one_folder_leave_files_and_a_list_that_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, others = Store.open(str(tmp_path)), [{"a": b"other", "b": b"other"}]
    write = Store.write_bytes

    def interrupted(store: Store, key: str, data: bytes) -> None:
        if key.endswith(SUMS_NAME) and others:
            write_files(store, "runs/r/report", others.pop())
        write(store, key, data)

    monkeypatch.setattr(Store, "write_bytes", interrupted)
    files = {"a": b"one", "b": b"one"}
    write_files(store, "runs/r/report", files)
    assert {name: store.read_bytes(f"runs/r/report/{name}") for name in files} == files
    assert store.read_bytes(f"runs/r/report/{SUMS_NAME}") == sums_of(files)


def test_prune_spares_the_ancestors_of_what_stands_and_the_last(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="regrade")
    gone = {removal.key for removal in plan(store, rule, ["linked"])}
    descended = lineage(store, [Artifact.at(store, layout.iteration(3, "checkpoint")).ref])
    ancestors = {node.ref.key for node in descended}
    assert layout.iteration(1, "optimizer_state") in ancestors
    assert not gone & ancestors
    parts = ("checkpoint", "optimizer_state", "rollouts", "batch")
    expected = {layout.iteration(n, part) for n in (4, 5) for part in parts} - {layout.iteration(5, "checkpoint")}
    assert gone == expected, "the state saved beside what stands is its own: a rollback goes on from it"


@pytest.mark.parametrize(
    ("named", "keys"),
    [
        ({"distil": {"teacher": "runs/linked/iterations/0004/checkpoint"}}, ["4/checkpoint"]),
        ({"teach": {"teacher": "linked@4"}}, ["4/checkpoint", "4/critic_state"]),
        ({"model": {"source": "checkpoint", "name": "linked@4"}}, ["4/checkpoint", "4/critic_state"]),
        ({"model": {"models": ["linked@6"], "base": "linked@4"}}, ["4/checkpoint", "4/critic_state"]),
        ({"value": {"source": "linked@4"}, "title": "me@4, -@4"}, ["4/checkpoint", "4/critic_state"]),
        ({"model": {"name": "runs/linked/iterations/0004/checkpoint/"}}, ["4/checkpoint"]),
        ({"value": {"pretrain": {"run": "linked", "first": 4, "last": 5}}}, ["4/rollouts", "5/rollouts"]),
        ({"title": "-@4"}, []),
    ],
)
def test_what_the_recipe_of_another_run_names_stays(
    linked: tuple[Store, RunLayout], named: dict[str, Any], keys: list[str]
) -> None:
    """A run goes on after a kill only if its teacher is still there, or the model that it began with."""
    store, layout = linked
    rule = Retention(parts=(*ALL, "critic_state"), keep_last=1, keep_every=0, keep_for="regrade")
    address = ArtifactAddress(store, layout.iteration(4, "critic_state"), OptimizerState)
    _publish(address, Identity.of("value", 1, {}), 64, {})
    before = {removal.key for removal in plan(store, rule, ["linked"])}
    other = json.loads(store.read_bytes(RunLayout("made").recipe)) | named
    store.write_bytes(RunLayout("other").recipe, json.dumps(other).encode())
    after = {removal.key for removal in plan(store, rule, ["linked"])}
    assert before - after == {f"runs/linked/iterations/000{key}" for key in keys}


def test_the_base_of_an_adapter_that_another_run_names_stays(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="regrade")
    base = Artifact.at(store, layout.iteration(4, "checkpoint")).ref
    before = {removal.key for removal in plan(store, rule, ["linked"])}
    attempt = ArtifactAddress(store, "models/adapter", Checkpoint).attempt(Identity.of("fetch", 1, {}))
    attempt.write_json("adapter_config.json", {})
    attempt.publish({}, base=base)
    recipe = json.loads(store.read_bytes(RunLayout("made").recipe)) | {"model": {"name": "models/adapter"}}
    store.write_bytes(RunLayout("other").recipe, json.dumps(recipe).encode())
    assert before - {removal.key for removal in plan(store, rule, ["linked"])} == {base.key}


def test_what_a_damaged_recipe_may_name_stays(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="regrade")
    before = {removal.key for removal in plan(store, rule, ["linked"])}
    store.write_bytes(RunLayout("other").recipe, b"{")
    damaged: list[Damage] = []
    after = {removal.key for removal in plan(store, rule, ["linked"], damaged)}
    assert [damage.file for damage in damaged] == [RunLayout("other").recipe]
    assert before - after == {key for key in before if key.endswith(("/checkpoint", "/rollouts"))} != set()
    assert layout.iteration(4, "optimizer_state") in after
    with pytest.raises(IntegrityError, match="other/recipe"):
        plan(store, rule, ["linked"])


def test_what_is_made_again_while_prune_plans_stays(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="regrade")
    (item,) = [item for item in plan(store, rule, ["linked"]) if item.key == layout.iteration(4, "batch")]
    store.delete(manifest_key(item.key))
    _publish(ArtifactAddress(store, item.key, Batch), Identity.of("pack", 2, {"again": True}), 64, {})
    manifest = store.read_bytes(manifest_key(item.key))
    remove(store, [item], rule)
    assert store.read_bytes(manifest_key(item.key)) == manifest
    store.delete(manifest_key(item.key))
    remove(store, [item], rule)
    assert not store.exists(manifest_key(item.key)), "what another process has removed does not come back"


@pytest.mark.parametrize(
    ("names", "pruned"),
    [
        (
            ["finetune@5"],
            "iterations/0005/checkpoint would be made again from runs/linked/iterations/0004/optimizer_st",
        ),
        (["sample"], "would be made again from"),
        (["finetune"], None),
        (["finetune@4", "finetune@5"], None),
        (["evaluate@6"], None),
        (["finetune@6"], None),
        (["sample@6"], None),
    ],
)
def test_what_was_pruned_cannot_be_asked_for_again(
    linked: tuple[Store, RunLayout], names: list[str], pruned: str | None
) -> None:
    """A request that cannot be carried out would stand in the way of every later command of the run."""
    store, layout = linked
    rule = Retention(keep_last=1, keep_every=0, keep_for="regrade")
    state = layout.iteration(4, "optimizer_state")
    remove(store, [item for item in plan(store, rule, ["linked"]) if item.key == state], rule)
    compared = {"rollouts": Artifact.at(store, layout.iteration(6, "rollouts")).ref, "state": Ref("", state, "")}
    address = ArtifactAddress(store, layout.comparison(6, "dapo-1", "checkpoint"), Checkpoint)
    _publish(address, Identity.of("finetune", 1, {}), 64, compared)  # is not made again
    known, now = ("sample", "finetune", "evaluate"), datetime.now(UTC)
    if pruned is None:
        assert record_request(store, layout, names, now, known, last=6).unfinished
        return
    with pytest.raises(BadInputError, match=f"refresh .*{pruned}.* whose files were pruned"):
        record_request(store, layout, names, now, known, last=6)
    assert not Refreshes.read(store, layout).requests


def test_what_is_kept_to_train_again_has_what_it_started_from(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="retrain")
    gone = {removal.key for removal in plan(store, rule, ["linked"])}
    assert {layout.iteration(5, part) for part in ("checkpoint", "optimizer_state")} & gone == set()
    assert {layout.iteration(4, part) for part in ("checkpoint", "optimizer_state")} <= gone
    every = Retention(parts=ALL, keep_last=1, keep_every=4, keep_for="regrade")
    assert not any("/0004/" in removal.key for removal in plan(store, every, ["linked"]))


def test_a_pruned_run_is_found_shown_reported_and_verified(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(parts=ALL, keep_last=1, keep_every=0, keep_for="regrade")
    removals = plan(store, rule)
    identity = Artifact.at(store, layout.iteration(4, "optimizer_state")).manifest.identity
    before = Artifact.at(store, layout.iteration(4, "optimizer_state")).ref
    remove(store, removals, rule)
    assert plan(store, rule) == [], "a second time there is nothing left to remove"
    for removal in removals:
        assert not [key for key in store.list(removal.key) if not key.endswith(MANIFEST_NAME)]
    # A later `train` finds the stage as published and goes on; only one that needs the files is told why they are gone.
    again = ArtifactAddress(store, before.key, OptimizerState).find(identity)
    assert again == before
    with pytest.raises(BadInputError, match=r"pruned on .*use an artifact that was kept .*or train again"):
        Artifact.open(store, before).local_folder(Path("unused"))
    assert verify(store).damaged == []
    assert [item.number for item in read_run(store, "linked").iterations] == list(range(7))
    assert "report.html" in report_files(RunView(read_run(store, "linked"), store))


def test_a_removal_cut_short_is_finished_by_the_next(linked: tuple[Store, RunLayout]) -> None:
    store, layout = linked
    rule = Retention(keep_last=1, keep_every=0)
    (first, *_) = [item for item in plan(store, rule, ["linked"]) if item.manifest]
    data = {key: store.read_bytes(key) for key in store.list(first.folder)}
    remove(store, [first], rule)
    for key, content in data.items():
        store.write_bytes(key, content)
    (left,) = [item for item in plan(store, rule, ["linked"]) if item.key == first.key]
    assert (left.what, left.folder, left.size_bytes) == ("lost attempt", first.folder, first.size_bytes)
    store.write_bytes(f"{layout.iteration(6, 'checkpoint')}/attempt-00ff/half.bin", b"half")
    assert f"{layout.iteration(6, 'checkpoint')}/attempt-00ff" in {item.folder for item in plan(store, rule)}


@pytest.mark.parametrize("stem", ["rollouts-sampled", "rounds-refine-01234567-1", "rollouts00"])
def test_shards_that_a_report_or_rates_were_made_of_may_go(linked: tuple[Store, RunLayout], stem: str) -> None:
    store, layout = linked
    report = layout.iteration(6, "report")
    folder = f"{report}/progress-00ff"
    store.write_bytes(f"{folder}/{stem}-0123456789abcdef.parquet", b"shard")
    (item,) = [item for item in plan(store, Retention(keep_last=100)) if item.key == report]
    assert (item.what, item.folder, item.size_bytes, item.manifest) == ("sampled shards", folder, 5, None)


def test_what_interrupted_attempts_at_shared_artifacts_left_goes_after_a_day(
    linked: tuple[Store, RunLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = linked
    address, identity = ArtifactAddress(store, "models/scratch-0123", Checkpoint), Identity.of("fetch", 1, {})
    lost, published = address.attempt(identity), address.attempt(identity)
    lost.write_bytes("model.bin", b"half")
    published.write_bytes("model.bin", b"whole")
    published.publish({})
    assert plan(store, Retention(keep_last=100)) == [], "another run may be at it"
    monkeypatch.setattr(retention, "LOST_AFTER_S", 0.0)
    (item,) = plan(store, Retention(keep_last=100))
    assert (item.what, item.folder, item.size_bytes, item.manifest) == ("lost attempt", lost.prefix, 4, None)
    assert plan(store, Retention(keep_last=100), ["linked"]) == []


@pytest.mark.parametrize(("part", "state_part"), [("checkpoint", "optimizer_state"), ("critic", "critic_state")])
def test_what_a_training_needs_whose_state_is_still_to_come_stays(
    linked: tuple[Store, RunLayout], part: str, state_part: str
) -> None:
    """As after a full disk while the state was written: the next command repeats the training."""
    store, layout = linked
    before: dict[str, Ref[Any]] = {}
    for n in (5, 6):
        store.delete(layout.iteration(n, part))
        store.delete(layout.iteration(n, state_part))
        identity = Identity.of("finetune", 1, {"n": n, "part": part}, **before)
        attempt = ArtifactAddress(store, layout.iteration(n, part), Checkpoint).attempt(identity)
        attempt.write_bytes("data.bin", b"weights")
        weights = attempt.publish({STATE_FOLLOWS: True}, **before)
        state_address = ArtifactAddress(store, layout.iteration(n, state_part), OptimizerState)
        before = {"state": _publish(state_address, identity, 64, {"checkpoint": weights}), "weights": weights}
    progress = ArtifactAddress(store, layout.iteration(6, part), Checkpoint).progress_key(identity)
    step = ArtifactAddress(store, f"{progress}/step-000003", StepCheckpoint)
    _publish(step, Identity.of("finetune", 1, {}), 500, {})
    rule = Retention(parts=(*ALL, "critic", "critic_state"), keep_last=1, keep_every=0, keep_for="regrade")
    ended = {removal.folder for removal in plan(store, rule, ["linked"])}
    assert progress in ended and any(layout.iteration(5, state_part) in folder for folder in ended)
    store.delete(layout.iteration(6, state_part))
    running = {removal.folder for removal in plan(store, rule, ["linked"])}
    assert progress not in running
    assert not any(layout.iteration(5, own) in folder for folder in running for own in (part, state_part))


def test_what_finished_stages_left_behind_goes_and_what_an_unfinished_one_needs_stays(
    linked: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, layout = linked
    now = datetime.now(UTC)
    refresh = Refresh({"finetune": now}, now)
    done, unfinished, rollouts = (
        layout.iteration(5, "checkpoint"), layout.iteration(7, "checkpoint"), layout.iteration(6, "rollouts"),
    )  # fmt: skip
    for key, asked in ((done, None), (done, refresh), (unfinished, None), (unfinished, refresh)):
        progress = ArtifactAddress(store, key, Checkpoint, asked).progress_key(Identity.of("finetune", 1, {"n": key}))
        _publish(
            ArtifactAddress(store, f"{progress}/step-000003", StepCheckpoint), Identity.of("finetune", 1, {}), 500, {}
        )
    attempt = ArtifactAddress(store, layout.iteration(7, "rollouts"), Rollouts).attempt(Identity.of("sample", 1, {}))
    attempt.write_bytes("rollouts-0.parquet", b"old")
    attempt.publish({})
    refreshes = record_request(store, layout, ["sample"], datetime.now(UTC), ["sample"], last=6)
    for number in (6, 7):  # redone once; in iteration 7 the new one is not finished yet
        address = ArtifactAddress(store, layout.iteration(number, "rollouts"), Rollouts)
        identity = Artifact.at(store, address.key).manifest.identity
        remade = ArtifactAddress(store, address.key, Rollouts, refreshes.at(number))
        assert remade.find(identity) is None
        attempt = remade.attempt(identity, resumable=True)
        attempt.write_bytes("rollouts-0.parquet", b"half of the new ones")
        if number == 6:
            attempt.publish({})
    command = ["prune", "linked", "--keep-last", "100", "--store", store.url]
    assert plan(store, Retention(keep_last=1)) == [], "not all is redone"
    assert run_command(command) == 0
    assert "linked is not pruned until `deerstalker iterate linked --until N` has" in capsys.readouterr().out
    record_done(store, layout, Refreshes.read(store, layout))

    before = store.list()
    assert run_command([*command, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["removals"]
    assert store.list() == before
    assert sorted((item["key"], item["what"]) for item in listed) == [
        (done, "step checkpoints"), (done, "step checkpoints"), (rollouts, "set aside")
    ]  # fmt: skip
    assert run_command([*command, "--yes"]) == 0
    gone = set(before) - set(store.list())
    assert len([key for key in gone if "/step-000003/" in key and key.startswith(done)]) == 4
    assert not any("/0007/" in key for key in gone)
    assert {key.split("/")[-1] for key in gone if key.startswith(rollouts)} >= {"refreshed.json"}
    assert verify(store).damaged == []
    assert Artifact.at(store, rollouts).read_bytes("rollouts-0.parquet") == b"half of the new ones"
    assert plan(store, Retention(keep_last=100)) == []


def test_prune_is_a_dry_run_unless_told_otherwise(
    linked: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = linked
    before = store.list()
    command = ["prune", "linked", "--parts", ",".join(ALL), "--keep-last=1", "--keep-every=0", "--store", store.url]
    assert run_command(command) == 0
    assert "would be removed" in capsys.readouterr().out
    assert store.list() == before
    assert run_command([*command, "--yes", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["removed"] and document["removals"] and len(store.list()) < len(before)
    assert run_command(["prune", "--parts", "everything", "--store", store.url]) == 2
    assert run_command(["prune", "nobody", "--store", store.url]) == 2


def test_verify_names_what_is_damaged(linked: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]) -> None:
    store, layout = linked
    assert run_command(["verify", store.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == []
    key = next(key for key in store.list(layout.iteration(2, "rollouts")) if key.endswith(".parquet"))
    data = bytearray(store.read_bytes(key))
    data[len(data) // 2] ^= 1
    store.write_bytes(key, bytes(data))
    assert run_command(["verify", store.url]) == 1
    captured = capsys.readouterr()
    assert f"damaged: {key}: SHA-256" in captured.out
    assert captured.err.count("\n") == 1 and key in captured.err
    assert run_command(["verify", str(Path(store.url.removeprefix("file://")) / "absent")]) in (1, 2)


def test_lineage_tells_who_made_it_from_what(
    linked: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    store, layout = linked
    assert run_command(["lineage", "linked@3", "--json", "--store", store.url]) == 0
    replaced = json.loads(capsys.readouterr().out)
    assert (replaced["artifact"]["state"], replaced["ancestors"]) == ("replaced", []), "its report saw other weights"
    key = layout.iteration(3, "checkpoint")
    assert run_command(["lineage", key, "--depth", "0", "--json", "--store", store.url]) == 0
    document = json.loads(capsys.readouterr().out)
    made = document["artifact"]["provenance"]
    assert {"created_at", "host", "hardware", "code", "versions", "seconds"} <= made.keys()
    assert len(made["code"]["sources"]) == 16 and made["hardware"]["cores"] >= 1
    assert document["artifact"]["config"] == {"n": 3}
    ancestors = {item["key"]: item for item in document["ancestors"] if item["state"] == "kept"}
    assert {layout.iteration(n, "checkpoint") for n in (1, 2)} <= ancestors.keys()
    assert layout.iteration(1, "rollouts") in ancestors
    assert ancestors[layout.iteration(1, "checkpoint")]["depth"] == 2

    store.delete(layout.iteration(2, "batch"))
    assert run_command(["lineage", key, "--wide", "--store", store.url]) == 0
    text = capsys.readouterr().out
    assert "made by   stage finetune, revision 1" in text
    parent = Artifact.at(store, layout.iteration(2, "checkpoint")).ref
    assert f"weights: {parent.key}  {parent.digest[:12]}  by finetune\n" in text, "whole, however narrow the terminal"
    assert f"batch: {layout.iteration(2, 'batch')}" in text and "[gone]" in text
    assert run_command(["lineage", "runs/linked/nothing", "--store", store.url]) == 2


def test_diff_says_what_differs_and_where_runs_part(
    linked: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = linked
    assert run_command(["diff", "made", "linked", "--json", "--store", store.url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {item["setting"]: (item["a"], item["b"]) for item in document["settings"]} == {"iterations": (4, 6)}
    assert document["first_parting"]["iteration"] == 0
    assert set(document["gain_of_b"]) == {"sampled", "greedy"}
    gain = document["gain_of_b"]["sampled"]
    means = [document["after"][name]["sampled"]["accuracy"]["mean"] for name in ("made", "linked")]
    assert gain["mean"] == pytest.approx(means[1] - means[0])
    assert run_command(["diff", "made", "made", "--store", store.url]) == 0
    assert "no difference" in capsys.readouterr().out
    assert run_command(["diff", "made", "nobody", "--store", store.url]) == 2


def test_report_is_written_again_with_its_checksums(
    linked: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = linked
    assert run_command(["report", "made", "--json", "--store", store.url]) == 0
    page = json.loads(capsys.readouterr().out)["report"]
    assert Path(page.removeprefix("file://")).read_text().startswith("<!doctype html>")
    result = verify(store)
    assert (result.damaged, result.unchecked) == ([], [])
