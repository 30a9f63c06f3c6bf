"""A pool of engines that load the same weights in parallel and rejoin a call after they were lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Protocol

from artifacts.errors import DeerstalkerError, TransientError
from stages.sampling.client import ReadyEngine, ended_error
from stages.sampling.replicas.call import Call, Member

UPDATE_INTERVAL_S = 0.1
RETURN_INTERVAL_S = 2.0
"""Interval at which a lost external engine is contacted again while others sample."""


class Server(Protocol):
    """An engine as a pool uses it (see `Replica` and `ExternalEngine`).

    Attributes:
        is_child: Whether it is a child process, which ends with this process and takes time to start.
    """

    is_child: bool

    def serve(self, model_dir: Path, digest: str) -> ReadyEngine:
        """Loads a checkpoint and returns the source to sample from."""
        ...

    def failure(self) -> str | None:
        """Returns the reason why the server cannot serve; None while it can."""
        ...

    def lost(self, reason: str) -> DeerstalkerError:
        """Gives the server up and returns the error to raise if it is not started again."""
        ...


class EnginePool:
    """Servers, each with a thread that makes it serve the newest target weights.

    Args:
        servers: At least one.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.servers = servers
        self._futures: dict[Server, Future[ReadyEngine]] = {}
        self._target: tuple[Path, str] | None = None

    def load_all(self, model_dir: Path, digest: str) -> None:
        """Makes every server load these weights, in a thread of its own, after any load that is still in progress."""
        self._target = (model_dir, digest)
        for server in self.servers:
            self.load(server)

    def load(self, server: Server, delay_s: float = 0.0) -> None:
        """Makes one server load the target weights after a delay, in a thread of its own."""
        assert self._target is not None
        target, previous, future = self._target, self._futures.get(server), Future[ReadyEngine]()

        def serve() -> None:
            if previous is not None:
                wait([previous])
            time.sleep(delay_s)
            try:
                future.set_result(server.serve(*target))
            except BaseException as error:
                future.set_exception(error)

        self._futures[server] = future
        threading.Thread(target=serve, name="engine", daemon=True).start()

    def ready(self) -> dict[Server, ReadyEngine]:
        """Returns the servers that have the weights, each with its source."""
        done = {server: future for server, future in self._futures.items() if future.done()}
        return {server: future.result() for server, future in done.items() if future.exception() is None}

    def failed(self) -> dict[Server, BaseException]:
        """Returns the servers that failed to load the weights, each with its error."""
        done = {server: future.exception() for server, future in self._futures.items() if future.done()}
        return {server: error for server, error in done.items() if error is not None}

    @property
    def loading(self) -> bool:
        """Whether a server is still loading the weights."""
        return any(not future.done() for future in self._futures.values())

    def wait_for_first(self) -> None:
        """Waits until a server has the weights.

        Raises:
            DeerstalkerError: Every server failed, or one failed in a way that another try would repeat.
        """
        while not self.ready():
            for error in self.failed().values():
                if not isinstance(error, TransientError) or not (self.loading or self.ready()):
                    raise error
            wait([future for future in self._futures.values() if not future.done()], return_when=FIRST_COMPLETED)

    def settle(self, timeout_s: float) -> None:
        """Waits for the loading threads of child processes that were ended."""
        wait([future for server, future in self._futures.items() if server.is_child], timeout_s)


class CallMembers:
    """The servers of a pool that take part in a call. Ready servers join; lost servers leave and are started again.

    Args:
        pool: The servers.
        call: The call that they take part in.
        restarts: Largest number of lost servers and failed restarts of child processes; the next one fails the call.
        retired: Function that returns whether the call must fail at once.
    """

    def __init__(self, pool: EnginePool, call: Call, restarts: int, retired: Callable[[], bool]) -> None:
        self._pool, self._call, self._restarts, self._retired = pool, call, restarts, retired
        self._members: dict[Server, Member] = {}
        self._losses = 0
        self._down: set[Server] = set()  # servers whose restart has failed since they were last ready
        self._updated_at = float("-inf")

    def update(self) -> None:
        """Adds the servers that are ready, and removes those whose process has ended or is stopped.

        Raises:
            DeerstalkerError: No server is left, or one failed in a way that another start would repeat.
        """
        for server, source in self._pool.ready().items():
            self._down.discard(server)
            if server not in self._members:
                self._members[server] = self._call.join(source)
        for server, error in self._pool.failed().items():
            self._restart(server, error)
        if time.monotonic() - self._updated_at < UPDATE_INTERVAL_S:
            return
        self._updated_at = time.monotonic()
        self._raise_if_retired()
        for member, reason in [(member, server.failure()) for server, member in self._members.items()]:
            if reason is not None:
                self.lose(member, reason)

    def lose(self, member: Member, reason: str) -> None:
        """Removes a server and starts it again. The other servers sample its groups, or it does after its restart.

        Raises:
            DeerstalkerError: Servers were lost too often, or this one in a way that another start would repeat.
        """
        if member.has_left.is_set():
            return  # it was lost before; this is another unusable answer of it
        self._call.leave(member)
        self._raise_if_retired()
        server = next(server for server, candidate in self._members.items() if candidate is member)
        del self._members[server]
        error = server.lost(f"lost while {self._call.unfinished} groups were in flight: {reason}")
        self._losses += 1
        if self._losses > self._restarts or not isinstance(error, TransientError):
            raise error
        self._pool.load(server)

    def _restart(self, server: Server, error: BaseException) -> None:
        """Starts a server again after a failed start, or raises its error if another start would not help."""
        self._raise_if_retired()
        self._down.add(server)
        none_left = not self._members and not self._pool.ready() and self._down >= set(self._pool.servers)
        if not isinstance(error, TransientError) or none_left:
            raise error
        if not server.is_child:
            self._pool.load(server, RETURN_INTERVAL_S)
            return
        self._losses += 1
        if self._losses > self._restarts:
            raise error
        self._pool.load(server)

    def _raise_if_retired(self) -> None:
        if self._retired():
            raise ended_error()
