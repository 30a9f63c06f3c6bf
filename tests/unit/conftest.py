"""A finished run that the tests of this folder look at, the request for a run that begins, a context for stages."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.opening import RunRequest
from stages.context import StageContext
from tests.support.contexts import make_context
from tests.support.made_run import make_run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunLayout]:
    """A directory store with the run `made`, of four iterations; read it only."""
    folder: Path = tmp_path_factory.mktemp("made")
    store = Store.open(str(folder / "store"))
    return store, make_run(store, iterations=4)


@pytest.fixture
def request_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunRequest]:
    """Asks for the run `mine` as a flow run would, with changed settings."""
    monkeypatch.setattr("flows.opening.this_flow_run", lambda: FlowRun(flow_id=uuid4(), created=datetime.now(UTC)))
    monkeypatch.setattr("flows.opening.RunLogger", lambda show: logging.getLogger())
    return lambda *overrides: RunRequest(
        run="mine", recipe="answers_only", store=str(tmp_path / "store"), overrides=list(overrides)
    )


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[StageContext]:
    """A context of stages over an empty directory store."""
    with make_context(Store.open(str(tmp_path / "store")), tmp_path / "scratch") as ctx:
        yield ctx


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Prefect server answers: nothing may reach a flow."""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
