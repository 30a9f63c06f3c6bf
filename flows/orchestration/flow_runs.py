"""The flow run that this code is a part of."""

import logging

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger


def this_flow_run() -> FlowRun:
    """The flow run that we are in."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    return context.flow_run


def run_logger() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """The logger whose lines Prefect shows with the flow run or the task run that we are in."""
    return get_run_logger()
