"""The current flow run and its logger."""

import logging
from collections.abc import Callable
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

_LINKED_RESULTS = 64


def this_flow_run() -> FlowRun:
    """Returns the current flow run; call it in a flow only."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    return context.flow_run


def forget_old_results() -> None:
    """Drops what Prefect has noted of older results, 4 KB each, which it would keep until the end of the flow run.

    It links each task run to those whose results it uses, by the addresses of these objects, for its graph of the run.
    That of a long run then shows the links between its newest task runs. Another object may have an older address.
    """
    context = FlowRunContext.get()
    noted = {} if context is None else context.run_results
    for address in list(noted)[:-_LINKED_RESULTS]:
        noted.pop(address, None)


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
