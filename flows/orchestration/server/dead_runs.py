"""Marks flow runs and task runs as crashed if Prefect lists them as running although their process is gone."""

import math
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Crashed

from flows.orchestration.server.database_template import own_database

_FLOW_RUN_ID = re.compile(rb"(?:^|\0)PREFECT__FLOW_RUN_ID=([0-9a-f-]{36})")
_R = TypeVar("_R")
_OPEN = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def crash_dead_runs(message: str, *, before: datetime, workers: Collection[str], unclaimed: bool) -> int:
    """Marks dead runs as crashed, so that they can be retried; returns their number.

    Runs of other workers are left to the automation for dead runs, because this process cannot know whether they are
    alive. A run that a process of this machine executes is alive, even if its worker is gone.

    Args:
        message: Message of the new state.
        before: Only runs that were created before this time (with a time zone).
        workers: Names of workers that are gone.
        unclaimed: Whether to mark runs that no worker started, too. Pass True only if no other process can be running
            one (see `flows.orchestration.server.local_server.database_lock`). It has no effect for a database that
            other machines may use.
    """
    unclaimed = unclaimed and own_database() is not None
    alive = _executed_here()
    open_runs = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OPEN)))
    with get_client(sync_client=True) as client:
        dead = [
            run
            for run in _all(client.read_flow_runs, flow_run_filter=open_runs)
            if run.created and run.created < before and _is_lost(run, workers, unclaimed) and str(run.id) not in alive
        ]
        for run in dead:
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
            _crash_tasks(client, run, message)
    return len(dead)


def crash_dead_tasks(run: FlowRun) -> None:
    """Marks task runs of killed attempts of a flow run as crashed; Prefect would list them as running forever.

    Args:
        run: The current flow run. Its earlier attempts have ended, because it is running again.
    """
    if run.run_count > 1:
        with get_client(sync_client=True) as client:
            _crash_tasks(client, run, "Its process was gone when the run was tried again.", run.run_count)


def _crash_tasks(client: SyncPrefectClient, run: FlowRun, message: str, before_attempt: float = math.inf) -> None:
    open_tasks = TaskRunFilter(
        flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]),
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_OPEN), name=None),
    )
    for task in _all(client.read_task_runs, task_run_filter=open_tasks):
        if task.flow_run_run_count < before_attempt:
            client.set_task_run_state(task.id, Crashed(message=message), force=True)


def _all(read: Callable[..., list[_R]], **filters: Any) -> list[_R]:
    """Returns what a request finds, of which the API returns 200 at a time."""
    found: list[_R] = []
    while page := read(**filters, offset=len(found)):
        found += page
    return found


def _executed_here() -> set[str]:
    """Returns the ids of the flow runs for which workers started processes on this machine."""
    run_ids: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            run_ids |= {match.decode() for match in _FLOW_RUN_ID.findall(path.read_bytes())}
    return run_ids


def _is_lost(run: FlowRun, workers: Collection[str], unclaimed: bool) -> bool:
    worker = run.labels.get("prefect.worker.name")  # set when a run is submitted, after `Pending`
    return unclaimed if worker is None else worker in workers
