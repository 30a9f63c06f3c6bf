"""Redoing what is published: what was named gives way, what follows gives way where it differs, the rest stays."""

from datetime import UTC, datetime, timedelta

import pytest

from artifacts.errors import BadInputError, IdentityMismatchError
from artifacts.identity import Identity
from artifacts.refs import Grades, Ref, Rollouts
from artifacts.renewal import RenewalRequest
from artifacts.slot import Slot
from artifacts.store import Store

KNOWN = ("sample", "grade")
LATER = datetime.now(UTC) + timedelta(hours=1)
"""Everything that a test publishes is older than a request of then."""


def publish(
    slot: Slot[Rollouts], stage: str, content: bytes, *, resumable: bool = False, **inputs: Ref[Rollouts]
) -> Ref[Rollouts]:
    identity = Identity.of(stage, 1, {}, **inputs)
    if found := slot.find(identity):
        return found
    attempt = slot.attempt(identity, resumable=resumable)
    attempt.write_bytes("x", content)
    return attempt.publish()


def test_only_named_iterations_are_outdated() -> None:
    request = RenewalRequest(["sample", "grade@2"], LATER, KNOWN)
    stages = {n: renewal.stages for n in (None, 1, 2) if (renewal := request.at(n))}
    assert stages == {None: {"sample"}, 1: {"sample"}, 2: {"sample", "grade"}}
    assert RenewalRequest([], LATER, KNOWN).at(1) is None


@pytest.mark.parametrize("name", ["smaple", "sample@", "sample@x", "", "promote"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="refresh"):
        RenewalRequest([name], LATER, KNOWN)


def test_a_named_stage_is_made_anew_once_and_its_old_files_stay() -> None:
    store = Store.open("memory://renewal-once")
    old = publish(Slot(store, "a", Rollouts), "sample", b"old", resumable=True)
    renewal = RenewalRequest(["sample"], datetime.now(UTC), KNOWN).at(1)
    new = publish(Slot(store, "a", Rollouts, renewal), "sample", b"new", resumable=True)
    assert not new.reused and new.digest != old.digest
    again = publish(Slot(store, "a", Rollouts, renewal), "sample", b"newer")
    assert again.reused and again == new  # a retry of the same request
    (superseded,) = [key for key in store.list("a") if key.endswith("superseded.json")]
    assert store.read_bytes(superseded.replace("superseded.json", "x")) == b"old"


def test_what_follows_is_made_anew_only_where_its_inputs_differ() -> None:
    store = Store.open("memory://renewal-follow")
    first, second = (Ref[Rollouts]("Rollouts", "r", digest) for digest in ("1" * 64, "2" * 64))
    made = publish(Slot(store, "g", Rollouts), "grade", b"first", source=first)
    renewal = RenewalRequest(["sample"], LATER, KNOWN).at(1)
    assert publish(Slot(store, "g", Rollouts, renewal), "grade", b"same", source=first) == made
    with pytest.raises(IdentityMismatchError):
        publish(Slot(store, "g", Rollouts), "grade", b"other", source=second)
    other = publish(Slot(store, "g", Rollouts, renewal), "grade", b"other", source=second)
    assert not other.reused and other.digest != made.digest


def test_another_config_is_still_refused() -> None:
    store = Store.open("memory://renewal-config")
    slot = Slot(store, "g", Grades, RenewalRequest(["sample"], LATER, KNOWN).at(1))
    slot.attempt(Identity.of("grade", 1, {"grader": "strict"})).publish()
    with pytest.raises(IdentityMismatchError, match="grader"):
        slot.find(Identity.of("grade", 1, {"grader": "published"}))
