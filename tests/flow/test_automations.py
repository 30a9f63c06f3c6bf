"""The automations that `up` installs, on a server that it starts."""

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.worker import EventsWorker

from artifacts.store.store import Store
from flows.lookup.history import read_iteration
from flows.orchestration.flow_runs import this_flow_run
from flows.orchestration.installation import POOL, make_pool, make_zombie_automations
from flows.orchestration.reward_alarm import AUTOMATION, make_alarm_automation
from flows.orchestration.server.backend import TAG
from flows.report.shown_run import ShownRun
from tests.support.alarm_run import make_alarm_run
from tests.support.prefect_server import own_server, prefect_api, reporting_to
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


class Server:
    """A server that can be started again on the same database."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._running = folder, ExitStack()
        self.start()

    def start(self) -> None:
        self.api = self._running.enter_context(own_server(self.folder))

    def stop(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


def test_automations_are_written_again_only_where_the_time_changes(server: Server) -> None:
    def written(within: timedelta | None) -> dict[float, str]:
        with SyncPrefectClient(server.api) as client:
            make_zombie_automations(client, within)
        automations = prefect_api(server.api, "POST", "/automations/filter", {})
        return {one["trigger"]["within"]: one["updated"] for one in automations}

    first = written(timedelta(seconds=60))
    assert set(first) == {60, 180}
    assert written(timedelta(seconds=60)) == first
    assert written(None) == first
    assert set(written(timedelta(seconds=90))) == {90, 270}


def test_a_run_that_falls_silent_is_crashed_and_others_are_left_alone(server: Server) -> None:
    """On clocks as short as Prefect takes; `test_deployed.py` has real processes that die."""
    api = server.api
    with SyncPrefectClient(api) as client:
        make_pool(client, POOL)
        make_zombie_automations(client, timedelta(seconds=10))
    flow = prefect_api(api, "POST", "/flows/", {"name": "some"})["id"]
    deployment = prefect_api(api, "POST", "/deployments/", {"name": "d", "flow_id": flow, "work_pool_name": POOL})

    def run(*names: str, tag: str = TAG) -> str:
        """Id of a run that went through these states, and of which nothing is heard afterwards."""
        pending = {"type": "PENDING", "name": "Pending"}
        path, content = f"/deployments/{deployment['id']}/create_flow_run", {"tags": [tag], "state": pending}
        made = prefect_api(api, "POST", path, content)["id"]
        for name in names:
            state = {"type": "PENDING" if name == "Submitting" else name.upper(), "name": name}
            answer = prefect_api(api, "POST", f"/flow_runs/{made}/set_state", {"state": state})
            assert answer["status"] == "ACCEPT", answer
        return made

    def states(runs: Iterable[str]) -> list[str]:
        return [prefect_api(api, "GET", f"/flow_runs/{one}")["state"]["name"] for one in runs]

    others = {run("Running", "Completed"): "Completed", run("Running", tag="somebody's"): "Running"}
    dead = [run(), run("Running"), run("Submitting")]
    wait_until(lambda: set(states(dead)) == {"Crashed"}, 400, lambda: states(dead))
    assert states(others) == list(others.values())
    message = prefect_api(api, "GET", f"/flow_runs/{dead[2]}")["state"]["message"]
    assert message == "No event for 30 s.", "a submitted run may take three times as long"


@pytest.mark.release
def test_a_run_is_heard_of_after_a_restart_of_its_server(server: Server) -> None:
    """Prefect's own server hears of it 15 minutes later, and calls it crashed before."""

    def silent_since(state: str) -> None:
        """Waits until the time that the run may be silent starts at its last change of state, to this one."""
        query = "select 1 from automation_bucket b join flow_run_state s on s.id = json_extract(b.last_event, '$.id')"
        with closing(sqlite3.connect(server.folder / "prefect.db")) as database:
            wait_until(
                lambda: database.execute(f"{query} where s.name = ? and s.flow_run_id = ?", [state, run]).fetchall(),
                300,
                lambda: database.execute("select * from automation_bucket").fetchall(),
            )

    with SyncPrefectClient(server.api) as client:
        make_zombie_automations(client, timedelta(minutes=10))
    flow = prefect_api(server.api, "POST", "/flows/", {"name": "some"})["id"]
    content = {"flow_id": flow, "tags": ["deerstalker"], "state": {"type": "PENDING", "name": "Pending"}}
    run = prefect_api(server.api, "POST", "/flow_runs/", content)["id"]
    silent_since("Pending")
    server.stop()
    server.start()
    state = {"type": "RUNNING", "name": "Running"}
    prefect_api(server.api, "POST", f"/flow_runs/{run}/set_state", {"state": state})
    silent_since("Running")


def test_an_automation_cancels_a_run_on_its_alarm_once_it_is_enabled(server: Server) -> None:
    """Prefect's events worker sends the event, as in a run; the automation finds the flow run that it is related to."""
    store = Store.open("memory://alarm")
    layout = make_alarm_run(store)
    with SyncPrefectClient(server.api) as client:
        make_alarm_automation(client)
        (automation,) = client.read_automations_by_name(AUTOMATION)
        assert not automation.enabled, "a false alarm must not stop a run unless somebody chose so"
        client.resume_automation(automation.id)
        make_alarm_automation(client)
        (kept,) = client.read_automations_by_name(AUTOMATION)
        assert kept.enabled, "installing again does not disable it"

    def state(run: str) -> str:
        return prefect_api(server.api, "GET", f"/flow_runs/{run}")["state"]["type"]

    @flow(name="diverging")
    def diverging() -> str:
        run = str(this_flow_run().id)
        for executed in (False, True):  # a run that is resumed has emitted it before
            EventsWorker.instance().wait_until_empty()
            assert state(run) == "RUNNING"
            shown = ShownRun(layout, store, None, logging.getLogger("alarm"))
            shown.iteration_finished(read_iteration(store, layout, 4), executed=executed)
        EventsWorker.instance().wait_until_empty()
        wait_until(lambda: state(run) == "CANCELLING", 400, lambda: state(run))
        return run

    with reporting_to(server.api):
        diverging()
