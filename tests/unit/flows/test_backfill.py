"""The checkpoints that a backfill evaluates, also of a run whose refresh was interrupted."""

from datetime import UTC, datetime, timedelta

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refresh import Refresh, record_request
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from flows.backfill import BackfillRequest, _report_address, divided, requested_checkpoints
from flows.config.recipes import load_profile
from flows.lookup.history import read_run
from stages.sampling.replicas import placement
from tests.support.made_run import make_run

BEST = BackfillRequest(runs=["made"], suite="s", checkpoints="best")
LATER = datetime.now(UTC) + timedelta(hours=1)


def test_an_interval_without_effect_is_refused() -> None:
    assert BackfillRequest(runs=["made"], suite="s", checkpoints="every", every=5).every == 5
    with pytest.raises(ValueError, match="every has no effect with checkpoints = 'all'"):
        BackfillRequest(runs=["made"], suite="s", every=5)


def test_the_best_is_the_promoted_one_unless_it_is_being_made_again() -> None:
    store = Store.open("memory://backfill-best")
    layout = make_run(store)
    record = read_run(store, "made")
    assert record.promoted is not None and record.promoted.iteration == 4
    (best,) = requested_checkpoints(record, BEST)
    assert (best.iteration, best.checkpoint) == (4, record.promoted.checkpoint)

    made = Artifact.at(store, layout.iteration(4, "checkpoint"))
    address = ArtifactAddress(store, made.key, Checkpoint, Refresh({"finetune": LATER}, LATER))
    assert address.find(made.manifest.identity) is None  # as a refresh that is then killed
    with pytest.raises(BadInputError, match="the promoted checkpoint, made@4, is being made again; continue the run"):
        requested_checkpoints(read_run(store, "made"), BEST)
    attempt = address.attempt(made.manifest.identity)
    attempt.write_bytes("config.json", b"other weights")
    attempt.publish(made.manifest.facts)
    with pytest.raises(BadInputError, match="is being made again"):
        requested_checkpoints(read_run(store, "made"), BEST)


def test_a_request_to_redo_the_evaluations_of_a_run_outdates_no_report_of_a_suite() -> None:
    """The checkpoint may be pruned, so that the report could not be made again."""
    store = Store.open("memory://backfill-refreshed")
    layout = make_run(store)
    (best,) = requested_checkpoints(read_run(store, "made"), BEST)
    identity = Identity.of("evaluate", 1, {}, weights=best.checkpoint)
    attempt = _report_address(store, "s", best).attempt(identity)
    attempt.publish({})
    record_request(store, layout, ["evaluate"], LATER, ["evaluate"], last=4)
    assert _report_address(store, "s", best).find(identity) is not None


def test_a_report_of_a_checkpoint_that_a_refresh_made_again_afterwards_is_made_again() -> None:
    store = Store.open("memory://backfill-during-a-refresh")
    layout = make_run(store)
    (best,) = requested_checkpoints(read_run(store, "made"), BEST)
    record_request(store, layout, ["finetune"], datetime.now(UTC), ["finetune"], last=4)
    before = Identity.of("evaluate", 1, {}, weights=best.checkpoint)
    _report_address(store, "s", best).attempt(before).publish({})
    assert _report_address(store, "s", best).find(before) is not None
    other = Ref[Checkpoint]("Checkpoint", best.checkpoint.key, "9" * 64)
    assert _report_address(store, "s", best).find(Identity.of("evaluate", 1, {}, weights=other)) is None


@pytest.mark.parametrize(
    ("changes", "on_cpu", "expected"),
    [
        ([], True, [(0.2, 0.5)] * 2),
        (["engine.kv_cache_gib=3"], True, [(0.2, 1.5)] * 2),
        (["engine.kv_cache_gib=3"], False, [(0.4, 3.0)]),  # the engines of one context are on all GPUs
        (["engine.tensor_parallel_size=2"], False, [(0.2, 0.5)] * 2),
        (["engine.replicas=1"], False, [(0.2, 0.5)] * 2),
    ],
)
def test_evaluations_at_once_divide_the_memory_of_a_device(
    changes: list[str], on_cpu: bool, expected: list[tuple[float, float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_on_cpu", lambda: on_cpu)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    engines = divided(load_profile("cpu", ["engine.memory_share=0.4", *changes]).engine, 2)
    assert [(engine.memory_share, engine.kv_cache_gib) for engine in engines] == expected
