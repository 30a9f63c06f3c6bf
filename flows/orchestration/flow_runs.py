"""The current flow run and its logger."""

import logging

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger


def this_flow_run() -> FlowRun:
    """Returns the current flow run; call it in a flow only."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    return context.flow_run


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """Returns the logger whose lines Prefect shows with the current task run or flow run."""
    return get_run_logger()
