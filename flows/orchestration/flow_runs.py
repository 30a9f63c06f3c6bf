"""The current flow run and its logger."""

import logging
from collections.abc import Callable
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger


def this_flow_run() -> FlowRun:
    """Returns the current flow run; call it in a flow only."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    return context.flow_run


class RunLogger(logging.LoggerAdapter[Any]):
    """The logger whose lines Prefect shows with the current flow run; warnings and errors are shown here, too.

    Args:
        show: Writes one line; called from any thread.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(get_run_logger(), {})
        self._show = show

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.WARNING:
            self._show(f"warning: {str(msg) % args if args else msg}")
        super().log(level, msg, *args, **kwargs)
