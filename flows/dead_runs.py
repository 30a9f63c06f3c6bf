"""Runs that Prefect's database still calls running although their process is gone."""

from datetime import datetime

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

_OPEN = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def crash_dead_runs(message: str, *, before: datetime, deployed_only: bool = False) -> int:
    """Ends them, so that they can be retried and nobody waits for them; returns how many there were.

    Call it only where nothing can be running: see `flows.local_server.database_lock`.

    Args:
        before: Only runs that were asked for earlier than this (with a time zone).
        deployed_only: Leave runs alone that no worker started.
    """
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OPEN)))
    with get_client(sync_client=True) as client:
        left = [
            run
            for run in client.read_flow_runs(flow_run_filter=chosen)
            if run.created and run.created < before and (run.deployment_id or not deployed_only)
        ]
        for run in left:
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return len(left)
