"""Redoing what is published: what was named gives way, what follows gives way where it differs, the rest stays."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IdentityMismatchError, IntegrityError, NotPublishedError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact, is_published
from artifacts.refresh import Refresh, Refreshes, RefreshRequest, record_done, record_request
from artifacts.refs import Decision, Grades, Ref, Rollouts
from artifacts.store.store import Store
from artifacts.verification import verify

KNOWN = ("sample", "grade")
LAYOUT, LAST = RunLayout("attempt-1"), 4
"""A run whose name reads like that of an attempt's folder."""
LATER = datetime.now(UTC) + timedelta(hours=1)
"""Everything that a test publishes is older than a request of then."""


def publish(
    address: ArtifactAddress[Rollouts], stage: str, content: bytes, *, resumable: bool = False, **inputs: Ref[Rollouts]
) -> Ref[Rollouts]:
    identity = Identity.of(stage, 1, {}, **inputs)
    if published := address.find(identity):
        return published
    attempt = address.attempt(identity, resumable=resumable)
    attempt.write_bytes("x", content)
    return attempt.publish()


def refreshes(*names: str, since: datetime = LATER, store: Store | None = None) -> Refreshes:
    return record_request(store or Store.open("memory://refresh-names"), LAYOUT, names, since, KNOWN, last=LAST)


def refresh_of(*names: str, since: datetime = LATER) -> Refresh | None:
    return Refreshes((RefreshRequest(names, since),)).at(1)


def test_only_named_iterations_are_outdated() -> None:
    request = Refreshes((RefreshRequest(("sample", "grade@2"), LATER),))
    stages = {n: set(refresh_of.stages) for n in (None, 1, 2) if (refresh_of := request.at(n))}
    assert stages == {None: {"sample"}, 1: {"sample"}, 2: {"sample", "grade"}}
    assert refreshes().at(1) is None


def run_of(iterations: int, url: str) -> Store:
    """A run that was killed in its last iteration, after `grade`."""
    store = Store.open(url)
    for n in range(iterations):
        for number, part, kind, stage in ((n, "decision", Decision, "promote"), (n + 1, "grades", Grades, "grade")):
            address = ArtifactAddress(store, LAYOUT.iteration(number, part), kind)
            address.attempt(Identity.of(stage, 1, {"n": number})).publish()
    return store


def test_an_iteration_may_be_written_with_zeros() -> None:
    store = run_of(3, "memory://refresh-zeros")
    request = refreshes("grade@0003", "grade@3", store=store)
    assert [n for n in range(5) if (refresh := request.at(n)) and "grade" in refresh.stages] == [3]
    assert refreshes("grade@03", since=LATER + timedelta(hours=1), store=store) == request


@pytest.mark.parametrize("name", ["grade@30", "grade@5", "grade@0", "sample@2"])
def test_an_iteration_without_the_artifact_is_refused(name: str) -> None:
    """It would be recorded as done although nothing was made again."""
    store = run_of(3, "memory://refresh-without-effect")
    with pytest.raises(BadInputError, match=f"^refresh {name}: iteration .* has published none"):
        refreshes("grade@1", name, store=store)
    assert not Refreshes.read(store, LAYOUT).requests


def test_an_iteration_after_the_end_of_the_command_is_refused() -> None:
    """The command would end without it, and say nothing."""
    store = run_of(LAST + 2, "memory://refresh-beyond")
    with pytest.raises(BadInputError, match=rf"^refresh grade@{LAST + 1}: this command ends with iteration {LAST}; "):
        refreshes(f"grade@{LAST + 1}", store=store)
    assert not Refreshes.read(store, LAYOUT).requests


def test_what_a_command_is_still_to_make_may_be_named() -> None:
    """The command may have begun the run, and be repeated after a kill; it may have named `sample@4` then."""
    assert refreshes("sample", "sample@4", "grade@3", store=run_of(3, "memory://refresh-to-come")).unfinished


def test_what_an_interrupted_refresh_is_to_make_again_may_be_named() -> None:
    store, key = run_of(3, "memory://refresh-interrupted"), LAYOUT.iteration(2, "grades")
    first = refreshes("grade@2", store=store)
    assert ArtifactAddress(store, key, Grades, first.at(2)).find(Identity.of("grade", 1, {"n": 2})) is None
    assert not is_published(store, key)
    assert refreshes("grade@2", since=LATER + timedelta(hours=1), store=store) == first
    assert len(refreshes("grade@1", "grade@2", since=LATER + timedelta(hours=2), store=store).requests) == 2


@pytest.mark.parametrize("name", ["smaple", "sample@", "sample@x", "", "promote"])
def test_other_names_are_refused(name: str) -> None:
    store = Store.open("memory://refresh-refused")
    with pytest.raises(BadInputError, match="refresh"):
        refreshes(name, store=store)
    assert store.list() == []


def test_what_another_process_makes_again_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store, key = Store.open("memory://refresh-meanwhile"), LAYOUT.iteration(1, "rollouts")
    publish(ArtifactAddress(store, key, Rollouts), "sample", b"old")
    mine, other = (ArtifactAddress(store, key, Rollouts, refresh_of("sample", since=datetime.now(UTC))) for _ in "ab")
    write, made = store.write_bytes, list[Ref[Rollouts]]()

    def write_slowly(key: str, data: bytes) -> None:
        write(key, data)
        monkeypatch.undo()
        made.append(publish(other, "sample", b"new"))

    monkeypatch.setattr(store, "write_bytes", write_slowly)
    found = mine.find(Identity.of("sample", 1, {}))
    assert made and found and found.digest == made[0].digest
    assert Artifact.at(store, key, Rollouts).read_bytes("x") == b"new"


def test_the_same_request_goes_on_until_it_is_done() -> None:
    store, hour = Store.open("memory://refresh-again"), timedelta(hours=1)
    first = refreshes("sample", "grade@2", store=store)
    assert refreshes("grade@2", "sample", since=LATER + hour, store=store) == first  # a second command, after a kill
    assert refreshes(store=store) == first and first.unfinished  # one that has no wish of its own
    record_done(store, LAYOUT, first)
    done = Refreshes.read(store, LAYOUT)
    assert not done.unfinished and done.at(2) == first.at(2)
    assert refreshes("sample", "grade@2", store=store) == done  # a retry of the flow run that asked
    again = refreshes("sample", since=LATER + 2 * hour, store=store)
    assert again.unfinished and again.at(2) == Refresh({"sample": LATER + 2 * hour, "grade": LATER}, LATER + 2 * hour)
    assert verify(store).damaged == [] == verify(store).unchecked


def test_a_clock_that_is_set_back_after_a_request_repeats_nothing_and_one_that_was_ahead_is_named() -> None:
    store = Store.open("memory://refresh-clock")
    key = LAYOUT.iteration(1, "grades")

    def made() -> Ref[Rollouts]:
        """The artifact that a command finds or makes; every request is of a later time than the clock shows."""
        return publish(ArtifactAddress(store, key, Rollouts, Refreshes.read(store, LAYOUT).at(1)), "grade", b"x")

    assert not made().reused
    refreshes("grade@1", store=store)
    assert [made().reused for _ in range(2)] == [False, True]
    record_done(store, LAYOUT, Refreshes.read(store, LAYOUT))
    assert made().reused
    with pytest.raises(BadInputError, match=r"made at .* UTC, and it is .* here; .*; set the clock of this machine if"):
        refreshes("grade@1", since=datetime.now(UTC), store=store)


def test_a_damaged_request_is_named() -> None:
    store = Store.open("memory://refresh-damage")
    refreshes("sample", store=store)
    (key,) = store.list()
    store.write_bytes(key, store.read_bytes(key).replace(b"sample", b"simple"))
    assert [damage.file for damage in verify(store).damaged] == [key]
    with pytest.raises(IntegrityError, match="refreshes"):
        refreshes(store=store)


def test_a_named_stage_is_made_anew_once_and_its_old_files_stay() -> None:
    store = Store.open("memory://refresh-once")
    old = publish(ArtifactAddress(store, "a", Rollouts), "sample", b"old", resumable=True)
    refresh = refresh_of("sample", since=datetime.now(UTC))
    new = publish(ArtifactAddress(store, "a", Rollouts, refresh), "sample", b"new", resumable=True)
    assert not new.reused and new.digest != old.digest
    again = publish(ArtifactAddress(store, "a", Rollouts, refresh), "sample", b"newer")
    assert again.reused and again == new  # a retry of the same request
    (outdated,) = [key for key in store.list("a") if key.endswith("refreshed.json")]
    assert store.read_bytes(outdated.replace("refreshed.json", "x")) == b"old"


def test_what_follows_is_made_anew_only_where_its_inputs_differ() -> None:
    store = Store.open("memory://refresh-follow")
    first, second = (Ref[Rollouts]("Rollouts", "r", digest) for digest in ("1" * 64, "2" * 64))
    made = publish(ArtifactAddress(store, "g", Rollouts), "grade", b"first", source=first)
    refresh = refresh_of("sample")
    assert publish(ArtifactAddress(store, "g", Rollouts, refresh), "grade", b"same", source=first) == made
    with pytest.raises(IdentityMismatchError):
        publish(ArtifactAddress(store, "g", Rollouts), "grade", b"other", source=second)
    other = publish(ArtifactAddress(store, "g", Rollouts, refresh), "grade", b"other", source=second)
    assert not other.reused and other.digest != made.digest


def test_artifacts_of_lost_inputs_name_the_command_that_makes_them_again() -> None:
    """Rollouts that are damaged and deleted never come back with the same digest."""
    store, key = Store.open("memory://refresh-lost"), LAYOUT.iteration(1, "grades")
    first, second = (Ref[Rollouts]("Rollouts", "r", digest) for digest in ("1" * 64, "2" * 64))
    publish(ArtifactAddress(store, key, Rollouts), "grade", b"first", source=first)
    with pytest.raises(
        IdentityMismatchError, match=r"`deerstalker iterate attempt-1 --until N --refresh grade@1` make it"
    ):
        publish(ArtifactAddress(store, key, Rollouts), "grade", b"other", source=second)
    asked = refreshes("grade@1", store=store)
    assert not publish(ArtifactAddress(store, key, Rollouts, asked.at(1)), "grade", b"other", source=second).reused


def test_another_config_is_still_refused() -> None:
    store = Store.open("memory://refresh-config")
    address = ArtifactAddress(store, "g", Grades, refresh_of("sample"))
    address.attempt(Identity.of("grade", 1, {"grader": "strict"})).publish()
    with pytest.raises(IdentityMismatchError, match="grader"):
        address.find(Identity.of("grade", 1, {"grader": "published"}))


def test_in_a_run_with_stages_other_settings_are_like_other_inputs() -> None:
    """New figures may end a phase earlier, so that an iteration after it belongs to the next phase."""
    store = Store.open("memory://refresh-staged")
    ArtifactAddress(store, "g", Grades).attempt(Identity.of("sample", 1, {"max_tokens": 96})).publish()
    refresh = refresh_of("evaluate")
    assert refresh is not None
    address = ArtifactAddress(store, "g", Grades, replace(refresh, any_config=True))
    assert address.find(Identity.of("sample", 1, {"max_tokens": 96})) is not None
    assert address.find(Identity.of("sample", 1, {"max_tokens": 160})) is None


def test_what_must_exist_is_not_refreshed_where_it_is_only_looked_up() -> None:
    store = run_of(2, "memory://refresh-looked-up")
    key, identity = LAYOUT.iteration(1, "grades"), Identity.of("grade", 1, {"n": 0})
    with pytest.raises(NotPublishedError):
        ArtifactAddress(store, key, Grades, refresh_of("grade"), must_exist=True).find(identity)
    assert is_published(store, key)
    assert ArtifactAddress(store, key, Grades, refresh_of("grade")).find(identity) is None
