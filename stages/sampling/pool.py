"""Engines that are brought to the same weights side by side, and that come back to a call after they were lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from artifacts.errors import TransientError

from .call import Call, Member
from .client import Source
from .external import ExternalEngine
from .replica import Replica, ended

Server = Replica | ExternalEngine
LOOK_INTERVAL_S = 0.1
RETURN_INTERVAL_S = 2.0
"""How often an external engine that was lost is asked whether it is back, while others sample."""


class Pool:
    """Servers, each with a thread that brings it to the weights last asked for.

    Args:
        servers: At least one.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self._futures: dict[Server, Future[Source]] = {}
        self._target: tuple[Path, str] | None = None

    def aim(self, model_dir: Path, digest: str) -> None:
        """Bring every server to these weights, in its own thread, after what that one may still be at."""
        self._target = (model_dir, digest)
        for server in self.servers:
            self.bring(server)

    def bring(self, server: Server, delay_s: float = 0.0) -> None:
        """Bring one server to the weights last asked for, after a delay."""
        assert self._target is not None
        target, before, future = self._target, self._futures.get(server), Future[Source]()

        def serve() -> None:
            if before is not None:
                wait([before])
            time.sleep(delay_s)
            try:
                future.set_result(server.serve(*target))
            except BaseException as error:
                future.set_exception(error)

        self._futures[server] = future
        threading.Thread(target=serve, name="engine", daemon=True).start()

    def ready(self) -> dict[Server, Source]:
        """Return the servers that have the weights, with how they are asked."""
        done = {server: future for server, future in self._futures.items() if future.done()}
        return {server: future.result() for server, future in done.items() if future.exception() is None}

    def failed(self) -> dict[Server, BaseException]:
        """Return the servers that could not be brought to the weights."""
        done = {server: future.exception() for server, future in self._futures.items() if future.done()}
        return {server: error for server, error in done.items() if error is not None}

    @property
    def coming(self) -> bool:
        """Whether a server is still on its way to the weights."""
        return any(not future.done() for future in self._futures.values())

    def wait_for_first(self) -> None:
        """Wait until a server has the weights.

        Raises:
            DeerstalkerError: None will, or one failed in a way that another try would repeat.
        """
        while not self.ready():
            for error in self.failed().values():
                if not isinstance(error, TransientError) or not (self.coming or self.ready()):
                    raise error
            wait([future for future in self._futures.values() if not future.done()], return_when=FIRST_COMPLETED)

    def settle(self, timeout_s: float) -> None:
        """Wait for the threads of servers that were ended."""
        wait([future for server, future in self._futures.items() if isinstance(server, Replica)], timeout_s)


class Party:
    """The part of a pool that takes part in a call: who is ready joins, who is lost leaves and is brought back.

    Args:
        restarts: Losses of servers, and failures to bring back child processes, that are put up with.
        retired: Tells whether the call is to fail at once.
    """

    def __init__(self, pool: Pool, call: Call, restarts: int, retired: Callable[[], bool]) -> None:
        self._pool, self._call, self._restarts, self._retired = pool, call, restarts, retired
        self._members: dict[Server, Member] = {}
        self._losses = 0
        self._down: set[Server] = set()
        """Servers that could not be brought back since they were last ready."""
        self._looked_at = float("-inf")

    def look(self) -> None:
        """Take in the servers that are ready, and take out those whose process ended or is stopped.

        Raises:
            DeerstalkerError: No server is left, or one failed in a way that another start would repeat.
        """
        for server, source in self._pool.ready().items():
            self._down.discard(server)
            if server not in self._members:
                self._members[server] = self._call.join(source)
        for server, error in self._pool.failed().items():
            self._bring_back(server, error)
        if time.monotonic() - self._looked_at < LOOK_INTERVAL_S:
            return
        self._looked_at = time.monotonic()
        self._raise_if_retired()
        for member, reason in [(member, server.wrong()) for server, member in self._members.items()]:
            if reason is not None:
                self.lose(member, reason)

    def lose(self, member: Member, reason: str) -> None:
        """Take a server out; its groups wait for the others and for its return.

        Raises:
            DeerstalkerError: One was lost too often, or in a way that another start would repeat.
        """
        if member.left.is_set():
            return  # lost already; a late answer of it was no good either
        self._call.leave(member)
        self._raise_if_retired()
        server = next(server for server, other in self._members.items() if other is member)
        del self._members[server]
        error = server.lost(f"lost while {self._call.unfinished} groups were in flight: {reason}")
        self._losses += 1
        if self._losses > self._restarts or not isinstance(error, TransientError):
            raise error
        self._pool.bring(server)

    def _bring_back(self, server: Server, error: BaseException) -> None:
        self._raise_if_retired()
        self._down.add(server)
        alone = not self._members and not self._pool.ready() and self._down >= set(self._pool.servers)
        if not isinstance(error, TransientError) or alone:
            raise error
        if isinstance(server, ExternalEngine):
            self._pool.bring(server, RETURN_INTERVAL_S)
            return
        self._losses += 1
        if self._losses > self._restarts:
            raise error
        self._pool.bring(server)

    def _raise_if_retired(self) -> None:
        if self._retired():
            raise ended()
