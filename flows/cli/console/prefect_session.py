"""Sets up Prefect and the progress view for commands that run a flow."""

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from artifacts.store.store import Store
from flows.cli.console.options import Output
from flows.cli.console.output import local_folder
from flows.orchestration.run_environment import prepare_command_environment
from flows.orchestration.server.backend import PrefectBackend

if TYPE_CHECKING:
    from flows.report.terminal.live import LiveView


@contextmanager
def prefect_session(store: Store, options: Output) -> Generator[Callable[[], AbstractContextManager[None]]]:
    """Starts a Prefect server, unless one runs already, and yields a function whose context manager wraps the flow.

    The server starts while the block imports modules and checks arguments; import Prefect inside the block, not before
    it. Entering the inner context manager waits for the server; inside it the flow's progress is shown. Use them as
    `with prefect_session(store, options) as running: ...; with running(): flow()`.
    """
    home = local_folder(store)
    if not options.debug:
        # Otherwise Prefect writes half a line to stderr for each batch of logs that its server rejects.
        logging.raiseExceptions = False
    prepare_command_environment(home, debug=options.debug)
    with PrefectBackend(home / "server.log") as backend:

        @contextmanager
        def running() -> Generator[None]:
            from flows.report.terminal.live import use_view

            with backend.ready(), use_view(_view(plain=options.json or options.debug)):
                yield

        yield running


def _view(*, plain: bool) -> "LiveView":
    """Returns the animated view if stderr is a terminal and `plain` is false, else the view that prints lines."""
    if plain or not sys.stderr.isatty():
        from flows.report.terminal.live import LiveView

        return LiveView()
    from flows.report.terminal.live_terminal import TerminalView

    return TerminalView()
