"""Workarounds for faults of Prefect 3.7.7 in its server and worker; `FIXED_IN` has the first version without each.

The server's process (`server_process.py`) calls `apply_to_server()` before it creates the server, the worker's process
(`worker_process.py`) calls `apply_to_worker()`. Prefect 3.8 and later need a fastapi that vLLM 0.32 does not support. A
newer server in an environment of its own would still have the faults of 3.9.1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary


def _module(name: str) -> Any:
    """Imports a module when it is needed; as `Any`, because the functions assigned below differ in type."""
    return import_module(name)


def _recorder() -> Any:
    return _module("prefect.server.services.task_run_recorder")


class Finishing:
    """A coroutine function whose calls run to their end, even if the task that awaits them is cancelled."""

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self._function = function
        self._running: set[asyncio.Future[Any]] = set()

    async def __call__(self, *arguments: Any) -> Any:
        """Calls the function and returns its result."""
        call = asyncio.ensure_future(self._function(*arguments))
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        return await asyncio.shield(call)

    async def finished(self) -> None:
        """Waits for the calls that are running."""
        await asyncio.gather(*self._running, return_exceptions=True)


def finish_batches() -> None:
    """Makes the recorder of task runs write a batch to its end when the server stops.

    The recorder takes a batch off its queue and then writes it. A server that stops cancels the write, the batch is
    lost, and its task runs stay `Running` forever. `batches_finished()` waits for the writes.
    """
    recorder = _recorder()
    recorder.record_bulk_task_run_events = Finishing(recorder.record_bulk_task_run_events)


async def batches_finished() -> None:
    """Waits for the batches that the recorder is writing; call it after `finish_batches` only."""
    await _recorder().record_bulk_task_run_events.finished()


def announce_on_the_loop() -> None:
    """Makes the server announce a changed automation on its event loop, as Prefect does from 3.8.6 on.

    Prefect 3.7 does so on another thread, for which the event loop waits. The thread needs a lock that a task of the
    loop may hold, because the server looks for changes every 5 s. Then the server is deadlocked
    (PrefectHQ/prefect#23055). With PostgreSQL this does not happen.
    """
    running: set[asyncio.Task[Any]] = set()

    def start(announcement: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(announcement)
        running.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(running.discard)

    _module("prefect.server.events.models.automations").run_coro_as_sync = start


def begin_as_writer() -> None:
    """Makes Prefect begin each SQLite transaction as a writer (`BEGIN IMMEDIATE`), which waits for other writers.

    Prefect begins a transaction as a reader. SQLite refuses its first write at once ("database is locked", HTTP 503) if
    another transaction has written since. During a run this happens to about one request in twenty, and clients then
    wait 2 s, 4 s, 8 s, up to minutes. With PostgreSQL this does not happen.
    """
    configuration = _module("prefect.server.database.configurations").AioSqliteConfiguration
    begin = configuration.begin_transaction

    def begin_transaction(self: Any, session: Any, with_for_update: bool = False) -> AbstractAsyncContextManager[Any]:
        del with_for_update  # Prefect uses it for SQLite only to choose `BEGIN IMMEDIATE`
        return begin(self, session, with_for_update=True)

    configuration.begin_transaction = begin_transaction


def wait_briefly_for_earlier_events() -> None:
    """Lets automations hold back an event for at most 5 s (Prefect: 15 min) until the event that it follows arrives.

    Prefect keeps in memory which events it has seen. After a restart of the server, each change of a run's state waits
    for an event from before the restart, and meanwhile the automation for dead runs marks the run as crashed. 5 s are
    enough, because in one process events arrive in order. PostgreSQL does not help.
    """
    _module("prefect.server.events.ordering.memory").PRECEDING_EVENT_LOOKBACK = timedelta(seconds=5)


def one_process_per_flow_run() -> None:
    """Makes a worker start a process for a flow run only after the last process of that flow run has ended.

    A user can retry a flow run while its last process is still exiting. The worker stores its processes by flow run, so
    it mistakes the exit of the first one for that of the second. It then deletes the working directory in which the
    second one starts, and the retry crashes.
    """
    runner = _module("prefect.runner.runner").Runner
    execute = runner.execute_flow_run
    locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def execute_flow_run(self: Any, flow_run_id: UUID, *arguments: Any, **named: Any) -> Any:
        lock = locks.setdefault(flow_run_id, asyncio.Lock())
        async with lock:
            return await execute(self, flow_run_id, *arguments, **named)

    runner.execute_flow_run = execute_flow_run


_OF_SERVER: dict[Callable[[], None], str | None] = {
    finish_batches: "3.8.8",
    announce_on_the_loop: "3.8.6",
    begin_as_writer: None,
    wait_briefly_for_earlier_events: None,
}
_OF_WORKER: dict[Callable[[], None], str | None] = {one_process_per_flow_run: "3.8.4"}
FIXED_IN = _OF_SERVER | _OF_WORKER
"""The first version of Prefect that does not need a workaround; None if the newest, 3.9.1 (2026-10-30), needs it."""


def apply_to_server() -> None:
    """Applies the workarounds to the Prefect server of this process; call it once."""
    for apply in _OF_SERVER:
        apply()


def apply_to_worker() -> None:
    """Applies the workarounds to the Prefect worker of this process; call it once."""
    for apply in _OF_WORKER:
        apply()
