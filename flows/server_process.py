"""The process of a local Prefect server; run as a script with a listening socket: `python server_process.py FD [NAME]`.

NAME is what users call it where it listens on more than the loopback address. Pages of other origins are refused.
"""

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any


class Finishing:
    """A coroutine function whose calls end what they began, also where the task that waits for them is cancelled.

    Prefect's recorder of task runs takes a batch off its queue, then writes it: ended in between, it loses the batch.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self._function = function
        self._begun: set[asyncio.Future[Any]] = set()

    async def __call__(self, *arguments: Any) -> Any:
        """Calls it."""
        call = asyncio.ensure_future(self._function(*arguments))
        self._begun.add(call)
        call.add_done_callback(self._begun.discard)
        return await asyncio.shield(call)

    async def finished(self) -> None:
        """Waits for the calls that have begun."""
        await asyncio.gather(*self._begun, return_exceptions=True)


def begin_as_writer(configuration: Any) -> None:
    """Has Prefect begin each SQLite transaction as one that writes, which waits for its turn.

    Begun as one that reads, as Prefect does, it is refused at once ("database is locked") where another has written
    since. Beside a run that happens to one request in some twenty; clients then wait 2 s, 4 s, 8 s, up to minutes.
    """
    begin = configuration.begin_transaction

    def begin_transaction(self: Any, session: Any, with_for_update: bool = False) -> AbstractAsyncContextManager[Any]:
        del with_for_update  # for SQLite it means this and nothing else
        return begin(self, session, with_for_update=True)

    configuration.begin_transaction = begin_transaction


def announce_on_the_loop(automations: Any) -> None:
    """Has Prefect take in a changed automation on the server's event loop, as Prefect does from 3.8 on.

    Prefect 3.7 lets another thread do it and the loop stand still meanwhile. The thread needs a lock that the loop may
    hold itself, which looks for changes every 5 s: then the server never answers again (PrefectHQ/prefect#23055).

    Args:
        automations: Prefect's module of them.
    """
    begun: set[asyncio.Task[Any]] = set()

    def begin(announcement: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(announcement)
        begun.add(task)  # the loop itself would forget it
        task.add_done_callback(begun.discard)

    automations.run_coro_as_sync = begin


def wait_briefly_for_earlier_events(ordering: Any) -> None:
    """Has automations take in an event whose predecessor does not come within seconds, instead of 15 minutes.

    Prefect keeps in memory which events it has seen. Behind a restart all changes of a run's state waited for the last
    one before it, and the run was called dead because nothing was heard of it. In one process events come in order.

    Args:
        ordering: Prefect's module that orders events in memory.
    """
    ordering.PRECEDING_EVENT_LOOKBACK = timedelta(seconds=5)


if __name__ == "__main__":
    gc.disable()  # looking for garbage among modules takes a quarter of the time that importing them does
    os.umask(0o077)  # the database is nobody else's

    from flows.own_pages import ORIGINS_VARIABLES, OwnPagesOnly, own_names

    listener = socket.socket(fileno=int(sys.argv[1]))
    address, port = listener.getsockname()[:2]
    names = own_names(address, port, "".join(sys.argv[2:]), os.environ)
    os.environ |= dict.fromkeys(ORIGINS_VARIABLES, ",".join(sorted(names.origins)))  # before Prefect is imported

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.events.models import automations
    from prefect.server.events.ordering import memory
    from prefect.server.services import task_run_recorder

    from flows.database_template import fill_new_database

    record = task_run_recorder.record_bulk_task_run_events = Finishing(task_run_recorder.record_bulk_task_run_events)

    begin_as_writer(AioSqliteConfiguration)
    announce_on_the_loop(automations)
    wait_briefly_for_earlier_events(memory)

    class Server(uvicorn.Server):
        """Ends behind the last batch."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Stops, then waits for what is being recorded."""
            await super().shutdown(sockets)
            await record.finished()

    fill_new_database()
    app = OwnPagesOnly(create_app(), names)
    gc.freeze()
    gc.enable()
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=2)
    Server(config).run(sockets=[listener])
