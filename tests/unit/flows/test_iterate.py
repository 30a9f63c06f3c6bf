"""How far `iterate --more` goes: as far as its first attempt would have, however much a refresh has redone since."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.refresh import Refreshes, RefreshRequest
from artifacts.refs import Decision, Grades
from artifacts.store.store import Store
from flows.cli.train import with_last
from flows.iterate import IterateRequest, iterations_done
from tests.support.sessions import made_session

LAYOUT = RunLayout("again")


def decide(store: Store, n: int, refreshes: Refreshes = Refreshes()) -> None:  # noqa: B008 (immutable)
    address = ArtifactAddress(store, LAYOUT.iteration(n, "decision"), Decision, refreshes.at(n))
    identity = Identity.of("promote", 1, {})
    if address.find(identity) is None:
        address.attempt(identity).publish()


@pytest.mark.parametrize("redone", [0, 3, 6, 7])
def test_a_retry_ends_where_its_first_attempt_would_have(redone: int) -> None:
    store = Store.open(f"memory://iterate-{redone}")
    for n in range(6):
        decide(store, n)
    asked_at = datetime.now(UTC)
    refreshes = Refreshes((RefreshRequest(("promote",), asked_at),))
    for n in range(redone):  # the seventh is new
        decide(store, n, refreshes)
    assert iterations_done(store, LAYOUT, asked_at) == 5
    assert iterations_done(store, LAYOUT, datetime.now(UTC)) == max(5, redone - 1)  # what another request finds


def test_a_decision_that_is_just_being_redone_counts() -> None:
    store = Store.open("memory://iterate-set-aside")
    for n in range(2):
        decide(store, n)
    asked_at = datetime.now(UTC)
    address = ArtifactAddress(
        store, LAYOUT.iteration(1, "decision"), Decision, Refreshes((RefreshRequest(("promote",), asked_at),)).at(1)
    )
    assert address.find(Identity.of("promote", 1, {})) is None
    assert iterations_done(store, LAYOUT, asked_at) == 1


def test_a_run_without_a_decision_cannot_go_on() -> None:
    store = Store.open("memory://iterate-none")
    now = datetime.now(UTC)
    with pytest.raises(BadInputError, match="no decision yet"):
        iterations_done(store, LAYOUT, now)
    decide(store, 0)
    with pytest.raises(BadInputError, match="no decision yet"):
        iterations_done(store, LAYOUT, now)


def test_an_interrupted_command_is_told_where_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Repeated with `--more 2`, it would train as many more iterations as had ended by then."""
    told: list[str] = []
    monkeypatch.setattr("flows.cli.train.continues_with", told.append)
    store = Store.open("memory://iterate-until")
    for n in range(4):
        decide(store, n)
    until = with_last(IterateRequest(run="again", more=2), store, LAYOUT)
    assert (until.more, until.until) == (None, 5)
    change = "with --until 5 instead of --more 2"
    assert capsys.readouterr().err == f"up to iteration 5; if this command is interrupted, repeat it {change}\n"
    decide(store, 4)
    assert with_last(until, store, LAYOUT) == until
    assert capsys.readouterr().err == "" and told == [change]


@pytest.mark.parametrize("done", [True, False])
def test_a_refresh_that_is_done_slows_no_resume(tmp_path: Path, done: bool) -> None:
    """Old iterations are looked up without task runs, unless something in them is to be made again."""
    run = made_session(Store.open(str(tmp_path)), tmp_path, LAYOUT, [], published=30)
    run.refresh = Refreshes((RefreshRequest(("grade",), datetime.now(UTC), done=done),))
    assert run.at(1, "grades", Grades).must_exist == done
    assert not run.at(29, "grades", Grades).must_exist
