"""The lease of a GPU slot, and many dead task runs, on a Prefect server."""

import logging
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    TaskRunFilter,
    TaskRunFilterFlowRunId,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Running

from artifacts.errors import DeerstalkerError
from flows.orchestration.gpu_lease import GpuLease
from flows.orchestration.server.dead_runs import _crash_tasks
from tests.support.prefect_server import reporting_to


def test_a_slot_that_is_taken_while_the_run_ends_is_given_back(
    prefect_api_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = GpuLease("ending", logging.getLogger(__name__))
    request = lease._request

    def ending(client: SyncPrefectClient) -> UUID | None:
        lease.give_back()
        return request(client)

    monkeypatch.setattr(lease, "_request", ending)
    with reporting_to(prefect_api_url), get_client(sync_client=True) as client:
        with pytest.raises(DeerstalkerError, match="the run ended while waiting"):
            lease.take()
        assert client.read_global_concurrency_limit_by_name("ending").active_slots == 0


def test_more_open_task_runs_than_a_page_holds_are_crashed(prefect_api_url: str) -> None:
    @flow(persist_result=False)
    def nothing() -> None: ...

    @task
    def one() -> None: ...

    with reporting_to(prefect_api_url), get_client(sync_client=True) as client:
        run = client.create_flow_run(nothing, state=Running())
        for number in range(205):
            client.create_task_run(one, run.id, dynamic_key=str(number), state=Running())
        _crash_tasks(client, run, "gone")
        open_runs = TaskRunFilter(
            flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]),
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING]), name=None),
        )
        assert client.read_task_runs(task_run_filter=open_runs) == []


def test_a_renewal_that_outlives_its_lease_takes_no_slot(prefect_api_url: str) -> None:
    """`give_back` waits two seconds for a renewal; a busy server may answer it later, that the lease is gone."""
    lease = GpuLease("given-back", logging.getLogger(__name__))
    with reporting_to(prefect_api_url), get_client(sync_client=True) as client:
        lease.take()
        assert client.read_global_concurrency_limit_by_name("given-back").active_slots == 1
        held = lease._lease
        lease.give_back()
        lease._lease = held  # as the renewal saw it
        assert not lease._renew(client)
        assert client.read_global_concurrency_limit_by_name("given-back").active_slots == 0
