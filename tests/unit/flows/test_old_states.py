"""The optimizer states that a run with `keep_state_every` removes while it goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Kind, OptimizerState, Ref, Report
from artifacts.store.store import Store
from artifacts.verification import verify
from flows.upkeep.removal import OldStates
from stages.statistics.records import DECISION_FILE, MeasuredCheckpoint, PromotionDecision
from stages.training.saved_state import STATE_FOLLOWS

LAYOUT = RunLayout("r")
REPORT = Ref[Report]("Report", "runs/r/report", "0" * 64)


def publish(store: Store, n: int, part: str, kind: type[Kind], content: object, **inputs: Ref[Any] | None) -> Ref[Any]:
    address = ArtifactAddress(store, LAYOUT.iteration(n, part), kind)
    attempt = address.attempt(Identity.of("finetune", 1, {"n": n, "part": part}, **inputs))
    attempt.write_json(DECISION_FILE if kind is Decision else "data.json", content)
    return attempt.publish({}, **inputs)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


def run(
    store: Store, best: dict[int, int], standing: dict[int, int] | None = None, *, carry_state: bool = True
) -> None:
    """Publishes a run whose iterations have states, weights and decisions; the dicts say who is best and stands."""
    weights: dict[int, Ref[Any]] = {}

    def measured(n: int) -> MeasuredCheckpoint:
        return MeasuredCheckpoint(checkpoint=weights[n], report=REPORT, iteration=n, score=0.5)

    for n, best_then in best.items():
        weights[n] = publish(store, n, "checkpoint", Checkpoint, [n, n])
        if n and carry_state:
            publish(store, n, "optimizer_state", OptimizerState, [n], checkpoint=weights[n])
            publish(store, n, "critic_state", OptimizerState, [n])
        decision = PromotionDecision(
            promoted=True, rolled_back=False, reason="", degraded=0,
            standing=measured((standing or best)[n]), best=measured(best_then), first=measured(0),
            candidate=measured(n), candidates=n + 1,
        )  # fmt: skip
        publish(store, n, "decision", Decision, decision.as_json())


def finish(store: Store, keep_every: int, last: int, first: int = 0) -> OldStates:
    """Does what a command does that runs or finds iterations 0 to `last`, of which it shows those from `first`."""
    states = OldStates(store, LAYOUT, keep_every)
    for n in range(first, last + 1):
        states.iteration_finished(n)
    return states


def take_state(store: Store, n: int) -> Callable[[], None]:
    """Takes away the state of an iteration, as while it is still being written; returns what publishes it."""
    key = f"{LAYOUT.iteration(n, 'optimizer_state')}/{MANIFEST_NAME}"
    manifest = store.read_bytes(key)
    store.delete(key)
    return lambda: store.write_bytes(key, manifest)


def note_first_state(store: Store, n: int) -> None:
    """Notes that an iteration was trained from the state of iteration 1, and that its own state is to follow."""
    weights = Artifact.at(store, LAYOUT.iteration(n, "checkpoint"))
    source = Artifact.at(store, LAYOUT.iteration(1, "optimizer_state")).ref
    changes = {"facts": {STATE_FOLLOWS: True}, "inputs": {"optimizer_state": source.as_json()}}
    store.write_bytes(f"{weights.key}/{MANIFEST_NAME}", weights.manifest.model_copy(update=changes).to_bytes())


def left(store: Store, part: str = "optimizer_state") -> list[int]:
    keys = [key for key in store.list(LAYOUT.root) if f"/{part}/" in key and not key.endswith(MANIFEST_NAME)]
    return [number for key in keys if (number := LAYOUT.iteration_of(key)) is not None]


@pytest.mark.parametrize(
    ("keep_every", "expected"),
    # 6 is the newest, 4 the best, 3 stands.
    [(0, [3, 4, 6]), (2, [2, 3, 4, 6]), (5, [3, 4, 5, 6]), (1, [1, 2, 3, 4, 5, 6])],
)
def test_the_newest_and_those_of_a_rollback_stay(store: Store, keep_every: int, expected: list[int]) -> None:
    run(store, best={n: min(n, 4) for n in range(7)}, standing={n: min(n, 3) for n in range(7)})
    for first in (0, 0, 5):  # the second and the third as commands that continue the run
        finish(store, keep_every, 6, first)
        assert left(store) == expected
        # No rollback returns to a critic.
        assert left(store, "critic_state") == [n for n in range(1, 7) if n == 6 or (keep_every and n % keep_every == 0)]
    assert left(store, "checkpoint") == list(range(7))
    assert verify(store).damaged == []
    for n in range(1, 7):
        state = Artifact.at(store, LAYOUT.iteration(n, "optimizer_state"))
        assert (state.manifest.pruned is None) == (n in expected)


def test_a_state_goes_when_its_checkpoint_is_no_longer_the_best(store: Store, tmp_path: Path) -> None:
    stands = {0: 0, 1: 1, 2: 1, 3: 1, 4: 4, 5: 4}
    run(store, stands)
    finish(store, 0, 3)
    assert left(store) == [1, 3, 4, 5], "the states of 4 and 5 are still to come"
    finish(store, 0, 5)
    assert left(store) == [4, 5]
    with pytest.raises(BadInputError, match=r"pruned on .*\(keep_state_every = 0: all but the newest.*train again"):
        Artifact.at(store, LAYOUT.iteration(1, "optimizer_state")).local_folder(tmp_path)


@pytest.mark.parametrize(("keep_every", "expected"), [(0, [4, 6]), (2, [2, 4, 6])])
def test_states_of_iterations_that_are_not_shown_again_go_too(
    store: Store, keep_every: int, expected: list[int]
) -> None:
    run(store, {n: min(n, 4) for n in range(7)})
    assert left(store) == list(range(1, 7)), "the run began with keep_state_every = null"
    finish(store, keep_every, 6, first=5)
    assert left(store) == expected and left(store, "critic_state") == [n for n in expected if n != 4 or keep_every]
    assert verify(store).damaged == []


def test_a_state_stays_until_the_next_one_is_published(store: Store) -> None:
    run(store, {n: n for n in range(4)})
    publish_state = take_state(store, 3)
    states = finish(store, 0, 3)
    assert left(store) == [2, 3] and left(store, "critic_state") == [3]
    publish_state()
    states.iteration_finished(3)
    assert left(store) == [3]


def test_what_unsaved_weights_were_trained_from_stays(store: Store) -> None:
    """Iteration 3 begins at 1 again, after a rollback, and is the best; a kill would train it from there once more."""
    stands = {0: 0, 1: 1, 2: 1, 3: 3}
    run(store, stands)
    note_first_state(store, 3)
    publish_state = take_state(store, 3)
    states = finish(store, 0, 3)
    assert left(store) == [1, 2, 3]
    publish_state()
    states.iteration_finished(3)
    assert left(store) == [3]


def test_it_stays_also_after_iterations_that_do_not_wait_for_the_state(store: Store) -> None:
    """Iteration 2, whose state is lost on its way, rolls back to 0: 3 begins there, and neither 3 nor 4 needs it."""
    stands = {0: 0, 1: 0, 2: 0, 3: 3, 4: 4}
    run(store, stands)
    note_first_state(store, 2)
    take_state(store, 2)
    finish(store, 3, 4)
    assert {1, 4} <= set(left(store)), "the end of the run trains iteration 2 again"
    finish(store, 3, 4, first=4)
    assert {1, 4} <= set(left(store)), "and so does that of a command that continues it"


def test_an_interrupted_removal_is_finished(store: Store) -> None:
    run(store, {n: n for n in range(3)})
    files = [key for key in store.list(LAYOUT.iteration(1, "optimizer_state")) if not key.endswith(MANIFEST_NAME)]
    content = {key: store.read_bytes(key) for key in files}
    finish(store, 0, 2)
    for key, data in content.items():  # the process was killed between the manifest and the files
        store.write_bytes(key, data)
    assert left(store) == [1, 2]
    finish(store, 0, 2)
    assert left(store) == [2]


def test_a_run_without_states_keeps_everything(store: Store) -> None:
    run(store, {n: n for n in range(3)}, carry_state=False)
    before = store.list()
    finish(store, 0, 2)
    assert store.list() == before
