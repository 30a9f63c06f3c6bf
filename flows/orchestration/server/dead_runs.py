"""Runs, and their stages, that Prefect's database still calls running although their process is gone."""

import math
import re
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path

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

_EXECUTED = re.compile(rb"(?:^|\0)PREFECT__FLOW_RUN_ID=([0-9a-f-]{36})")
_OPEN = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def crash_dead_runs(message: str, *, before: datetime, workers: Collection[str], unclaimed: bool) -> int:
    """Ends them, so that they can be retried and nobody waits for them; returns how many there were.

    Runs of other workers are left to the automation for dead runs: nobody here knows whether they live. So are those
    which a process of this machine executes, though its worker is gone.

    Args:
        before: Only runs that were asked for earlier than this (with a time zone).
        workers: Names of workers that are gone.
        unclaimed: Also runs that no worker started. True only where nobody can be running one, see
            `flows.orchestration.server.local_server.database_lock`; a database that other machines may
            use has none of these.
    """
    unclaimed = unclaimed and own_database() is not None
    living = _executed_here()
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OPEN)))
    with get_client(sync_client=True) as client:
        left = [
            run
            for run in client.read_flow_runs(flow_run_filter=chosen)
            if run.created and run.created < before and _dead(run, workers, unclaimed) and str(run.id) not in living
        ]
        for run in left:
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
            _crash_tasks(client, run, message)
    return len(left)


def crash_dead_tasks(run: FlowRun) -> None:
    """Ends the task runs that killed attempts of a flow run left behind; Prefect calls them running for good.

    Args:
        run: The one that we are in: only its next attempt knows that the earlier ones are over.
    """
    if run.run_count > 1:
        with get_client(sync_client=True) as client:
            _crash_tasks(client, run, "Its process was gone when the run was tried again.", run.run_count)


def _crash_tasks(client: SyncPrefectClient, run: FlowRun, message: str, before_attempt: float = math.inf) -> None:
    chosen = TaskRunFilter(
        flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]),
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_OPEN), name=None),
    )
    for task in client.read_task_runs(task_run_filter=chosen):
        if task.flow_run_run_count < before_attempt:
            client.set_task_run_state(task.id, Crashed(message=message), force=True)


def _executed_here() -> set[str]:
    """Ids of flow runs that processes of this machine were started for by a worker."""
    found: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found |= {match.decode() for match in _EXECUTED.findall(path.read_bytes())}
    return found


def _dead(run: FlowRun, workers: Collection[str], unclaimed: bool) -> bool:
    started_by = run.labels.get("prefect.worker.name")  # given behind `Pending`: see `make_zombie_automations`
    return unclaimed if started_by is None else started_by in workers
