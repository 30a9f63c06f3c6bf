"""Prefect's settings, server and progress view for commands that run a flow."""

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from artifacts.store.store import Store
from flows.cli.console.options import Output
from flows.cli.console.output import local_folder
from flows.orchestration.run_environment import prepare_surroundings
from flows.orchestration.server.backend import Backend

if TYPE_CHECKING:
    from flows.report.terminal.live import LiveView


@contextmanager
def prefect_beside(store: Store, options: Output) -> Generator[Callable[[], AbstractContextManager[None]]]:
    """Starts a Prefect server for a command that runs a flow; import Prefect inside of the block, not before.

    The server starts while the command imports modules and checks its arguments. Yields a function that returns a
    context manager for the flow itself: entering it waits for the server, and shows the flow's progress.
    """
    home = local_folder(store)
    prepare_surroundings(home, debug=options.debug)
    with Backend(home / "server.log") as backend:

        @contextmanager
        def running() -> Generator[None]:
            from flows.report.terminal.live import use_view

            with backend.ready(), use_view(_view(plain=options.json or options.debug)):
                yield

        yield running


def _view(*, plain: bool) -> "LiveView":
    """Returns the moving view if stderr is a terminal, else the plain one.

    Args:
        plain: Return the plain one in any case.
    """
    if plain or not sys.stderr.isatty():
        from flows.report.terminal.live import LiveView

        return LiveView()
    from flows.report.terminal.live_terminal import TerminalView

    return TerminalView()
