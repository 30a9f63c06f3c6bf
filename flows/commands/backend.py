"""What every command that runs a flow needs around it: Prefect's surroundings, its server, and a view."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from artifacts.store import Store
from flows.backend import Backend
from flows.commands.output import local_folder
from flows.options import Output
from flows.surroundings import prepare_surroundings


@contextmanager
def prefect_beside(store: Store, options: Output) -> Generator[Callable[[], AbstractContextManager[None]]]:
    """Lets a command run flows; import Prefect inside, not before.

    The server comes up while the command imports and checks what it was given. Yields what to enter for the flow
    itself: it waits for the server, and shows the flow's progress.
    """
    home = local_folder(store)
    prepare_surroundings(home, debug=options.debug)
    with Backend(home / "server.log") as backend:

        @contextmanager
        def running() -> Generator[None]:
            from flows.live import choose_view, use_view

            with backend.ready(), use_view(choose_view(plain=options.json or options.debug)):
                yield

        yield running
