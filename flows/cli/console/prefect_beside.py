"""Prefect's settings, server and progress view for commands that run a flow."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from artifacts.store.store import Store
from flows.cli.console.options import Output
from flows.cli.console.output import local_folder
from flows.orchestration.run_environment import prepare_surroundings
from flows.orchestration.server.backend import Backend


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
            from flows.report.terminal.live import choose_view, use_view

            with backend.ready(), use_view(choose_view(plain=options.json or options.debug)):
                yield

        yield running
