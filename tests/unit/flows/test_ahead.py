"""The weights that sample an iteration ahead: at most one iteration behind, the same on every machine and attempt."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, DeerstalkerError, IdentityMismatchError, TransientError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Decision, Kind, PassRates, Puzzles, Ref, Report, Rollouts
from artifacts.store.store import Store
from flows import ahead
from flows.checks.overlap import Role, check_overlap
from flows.inputs.credit import CreditModels
from flows.iteration import Position
from flows.lookup.history import IterationRecord
from flows.report.metrics import values_of
from flows.session.calls import task_run_name
from flows.session.session import Session
from flows.train import _sample_ahead
from stages.promote import weights_after
from stages.statistics.records import DECISION_FILE, MeasuredCheckpoint, PromotionDecision
from stages.training.launch import Weights
from tests.support.sessions import made_session

LAYOUT = RunLayout("ahead")
PUZZLES = Ref[Puzzles]("Puzzles", "puzzles/set", "0" * 64)
REPORT = Ref[Report]("Report", "runs/ahead/report", "0" * 64)
LAST = 7
BACK_TO = {4: 2}
"""The iteration after which the run is rolled back, and the iteration whose weights it returns to."""
SAMPLED_FROM = {1: 0, 2: 0, 3: 1, 4: 2, 5: 2, 6: 2, 7: 5}
"""The iteration whose weights sample each iteration. 5 begins with the weights of 2, so 6 is one iteration behind."""


def session(store: Store, folder: Path, *profile: str, **changes: str) -> Session:
    overrides = [f"{name}={value}" for name, value in {"iterate_ahead": "1", **changes}.items()]
    return made_session(store, folder, LAYOUT, overrides, profile)


def publish(store: Store, n: int, part: str, kind: type[Kind], content: object, **inputs: Ref[Any]) -> Ref[Any]:
    address = ArtifactAddress(store, LAYOUT.iteration(n, part), kind)
    attempt = address.attempt(Identity.of("finetune", 1, {"n": n, "part": part}, **inputs))
    attempt.write_json(DECISION_FILE if kind is Decision else "data.json", content)
    rolled_back = n in BACK_TO if kind is Decision else None
    return attempt.publish({"rolled_back": rolled_back}, **inputs)


def sampled(session: Session, n: int, policy: Ref[Checkpoint]) -> Ref[Rollouts]:
    """Finds or publishes rollouts, as the stage `sample` does."""
    address = session.at(n, "rollouts", Rollouts)
    identity = Identity.of("sample", 1, {"iteration": n}, weights=policy)
    if found := address.find(identity):
        return found
    attempt = address.attempt(identity)
    attempt.write_json("data.json", [n, policy.digest])
    return attempt.publish({}, weights=policy)


class Trained:
    """A run whose stages publish small files; after iteration 4 it is rolled back to iteration 2."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.weights = {0: publish(store, 0, "checkpoint", Checkpoint, "0")}
        self.first = Position(Weights(self.weights[0]), self.decision(0), CreditModels())

    def decision(self, n: int) -> Ref[Decision]:
        back, candidate = self.weights[BACK_TO.get(n, n)], self.weights[n]
        best, newest = (
            MeasuredCheckpoint(checkpoint=ref, report=REPORT, iteration=n, score=0.5) for ref in (back, candidate)
        )
        decision = PromotionDecision(
            promoted=n not in BACK_TO, rolled_back=n in BACK_TO, reason="", degraded=0,
            standing=best, best=best, first=best, candidate=newest, candidates=n + 1,
        )  # fmt: skip
        return publish(self.store, n, "decision", Decision, decision.as_json())

    def iteration(self, session: Session, puzzles: Ref[Puzzles], start: Position, n: int) -> Position:
        """What an iteration does with weights: its rollouts are those that the main path asks for."""
        rollouts = sampled(session, n, start.policy)
        if session.has(n, "decision"):
            weights = Artifact.at(self.store, LAYOUT.iteration(n, "checkpoint"), Checkpoint).ref
            decision = Artifact.at(self.store, LAYOUT.iteration(n, "decision"), Decision).ref
        else:
            weights = publish(
                self.store, n, "checkpoint", Checkpoint, f"{n}", weights=start.weights.checkpoint, rollouts=rollouts
            )
            self.weights[n] = weights
            decision = self.decision(n)
        newest = replace(start.weights, checkpoint=weights)
        return Position(weights_after(decision, newest, session.ctx), decision, start.credit_models)


def overlapped(
    trained: Trained, session: Session, puzzles: Ref[Puzzles], start: Position, n: int, last: int, role: Role = "both"
) -> Position:
    """Runs an iteration as the loop of a run does, with `trained` in place of its stages."""
    with ahead.sampling_ahead(session, puzzles, start, n, last, role) as sampled:
        after = trained.iteration(sampled, puzzles, start, n)
    return replace(after, sampling_checkpoint=ahead.sampling_checkpoint_after(session, start, after, n))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


def test_each_iteration_is_sampled_from_weights_at_most_one_iteration_behind(store: Store, tmp_path: Path) -> None:
    trained, run = Trained(store), session(store, tmp_path)
    for _ in range(2):  # the second time as a command that repeats a finished run
        position, policies = trained.first, dict[int, Ref[Checkpoint]]()
        for n in range(1, LAST + 1):
            policies[n] = position.policy
            if n not in {after + 1 for after in BACK_TO}:  # as the sampler, who cannot know what a decision will be
                sampled(run, n, policies[n])
            position = overlapped(trained, run, PUZZLES, position, n, LAST, "trainer")
        assert {n: policy.key for n, policy in policies.items()} == {
            n: LAYOUT.iteration(source, "checkpoint") for n, source in SAMPLED_FROM.items()
        }


def test_a_sampler_that_reads_the_store_asks_for_the_same_rollouts(store: Store, tmp_path: Path) -> None:
    trained, run = Trained(store), session(store, tmp_path)
    position = trained.first
    for n in range(1, LAST + 1):
        sampled(run, n, position.policy)
        position = overlapped(trained, run, PUZZLES, position, n, LAST, "trainer")
    made = {n: Artifact.at(store, LAYOUT.iteration(n, "rollouts")).manifest.attempt for n in range(1, LAST + 1)}
    ahead.sample_all(run, PUZZLES, trained.first, LAST)  # it finds all of them, and so needs no engine
    assert made == {n: Artifact.at(store, LAYOUT.iteration(n, "rollouts")).manifest.attempt for n in range(1, LAST + 1)}


@pytest.mark.parametrize("stage", ["sample", "promote"])
def test_a_sampler_ends_after_the_iteration_that_stop_after_names(store: Store, tmp_path: Path, stage: str) -> None:
    trained, run = Trained(store), session(store, tmp_path, "stage_timeout_s=0.6")
    for n in (1, 2):
        sampled(run, n, trained.first.policy)
    run.last_task_run = task_run_name(stage, "0002")
    ahead.sample_all(run, PUZZLES, trained.first, LAST)  # it would wait for the trainer before iteration 3


def test_a_sampler_has_nothing_to_do_if_the_run_stops_before_iteration_1(store: Store, tmp_path: Path) -> None:
    run = session(store, tmp_path, "stage_timeout_s=0.6")
    run.last_task_run = task_run_name("evaluate", "0000")
    assert _sample_ahead(run) == LAYOUT.root, "the trainer ends before its first decision"


def test_what_was_sampled_ahead_of_a_rollback_is_replaced_and_its_files_stay(store: Store, tmp_path: Path) -> None:
    trained, run = Trained(store), session(store, tmp_path)
    position = trained.first
    for n in range(1, 5):
        sampled(run, n, position.policy)
        position = overlapped(trained, run, PUZZLES, position, n, LAST, "trainer")
    early = sampled(run, 5, trained.weights[3])  # while iteration 4 was trained
    files = set(store.list(early.key)) - {f"{early.key}/{MANIFEST_NAME}"}
    assert position.sampling_checkpoint is None
    with pytest.raises(IdentityMismatchError, match="other inputs"):
        sampled(run, 5, position.policy)
    overlapped(trained, run, PUZZLES, position, 5, LAST, "trainer")
    rollouts = Artifact.at(store, LAYOUT.iteration(5, "rollouts"), Rollouts)
    assert rollouts.manifest.inputs["weights"]["digest"] == trained.weights[2].digest
    assert files < set(store.list(early.key))


def test_the_lag_of_rollouts_is_shown(store: Store, tmp_path: Path) -> None:
    trained, run = Trained(store), session(store, tmp_path)
    position, lags = trained.first, list[Any]()
    for n in range(1, LAST + 1):
        sampled(run, n, position.policy)
        position = overlapped(trained, run, PUZZLES, position, n, LAST, "trainer")
        parts = {"sample": "rollouts", "finetune": "checkpoint"}
        manifests = {stage: Artifact.at(store, LAYOUT.iteration(n, part)).manifest for stage, part in parts.items()}
        lags.append(values_of(IterationRecord(n, manifests))["iterations_behind"])
    assert lags == [0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0]


def test_waiting_for_the_other_half_ends(store: Store, tmp_path: Path) -> None:
    trained, run = Trained(store), session(store, tmp_path, "stage_timeout_s=0.6")
    with pytest.raises(DeerstalkerError, match=r"iteration 1: no rollouts after . s of waiting for the sampler"):
        overlapped(trained, run, PUZZLES, trained.first, 1, LAST, "trainer")


def test_a_store_that_does_not_answer_is_waited_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([TransientError("s3://b", "timed out"), True])

    def answer(*_: object) -> bool:
        if isinstance(item := next(answers), Exception):
            raise item
        return item

    monkeypatch.setattr(ahead, "is_published", answer)
    monkeypatch.setattr(ahead, "_POLL_S", 0.01)
    ahead.wait_for_start(session(store, tmp_path))
    assert next(answers, None) is None


def test_a_sampler_waits_for_the_pass_rates_that_the_trainer_measures(store: Store, tmp_path: Path) -> None:
    Trained(store)
    ahead.wait_for_start(session(store, tmp_path, "stage_timeout_s=0.6"))
    rating = session(store, tmp_path, "stage_timeout_s=0.6", rate="{models=[{name='start'}]}")
    with pytest.raises(DeerstalkerError, match=r"before iteration 1: no pass_rates after . s of waiting for the train"):
        ahead.wait_for_start(rating)
    ArtifactAddress(store, LAYOUT.pass_rates, PassRates).attempt(Identity.of("rate", 1, {})).publish()
    ahead.wait_for_start(rating)


@pytest.mark.parametrize(
    ("role", "profile", "changes", "message"),
    [
        ("sampler", (), {"iterate_ahead": "0"}, "role: sampler; expected both, because the recipe has iterate_ahead"),
        ("trainer", (), {"iterate_ahead": "0"}, "role: trainer; expected both"),
        ("both", ("gpu_slot=gpu", "gpu_slot_spans=stage"), {}, "gpu_slot_spans: 'stage', but with iterate_ahead = 1"),
    ],
)
def test_what_cannot_overlap_is_refused(
    store: Store, tmp_path: Path, role: Role, profile: tuple[str, ...], changes: dict[str, str], message: str
) -> None:
    run = session(store, tmp_path, *profile, **changes)
    with pytest.raises(BadInputError, match=message):
        check_overlap(run.recipe, run.ctx.profile, role)


@pytest.mark.parametrize("role", ["sampler", "trainer", "both"])
def test_what_can_overlap_is_not_refused(store: Store, tmp_path: Path, role: Role) -> None:
    run = session(store, tmp_path, "gpu_slot=gpu")
    check_overlap(run.recipe, run.ctx.profile, role)
    if role == "both":
        check_overlap(run.recipe, run.ctx.profile, role, refreshes=True)
        return
    with pytest.raises(BadInputError, match=f"refresh stages, and role {role}; expected role both"):
        check_overlap(run.recipe, run.ctx.profile, role, refreshes=True)
