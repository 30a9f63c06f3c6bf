"""What tests want to know of an engine: its child processes, and what happened to them."""

from stages.sampling.client import ReadyEngine
from stages.sampling.engine import Engine
from stages.sampling.replicas.replica import Replica

# pyright: reportPrivateUsage=false


class facts:  # noqa: N801 (reads as a function)
    """A view of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def _all(self) -> list[Replica]:
        return self._engine._ended_replicas + self._engine._replicas

    @property
    def running(self) -> bool:
        """Whether a child process is running."""
        return any(replica.running for replica in self._engine._replicas)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the child processes. Each is also the session id of every process that the child started."""
        return [replica.process_id for replica in self._engine._replicas if replica.process_id]

    @property
    def process_id(self) -> int:
        """The first of `process_ids`; 0 if there is none."""
        return next(iter(self.process_ids), 0)

    @property
    def starts(self) -> int:
        """Number of child processes that have become ready so far."""
        return sum(replica.starts for replica in self._all)

    @property
    def reloads(self) -> int:
        """Number of reloads of weights in place so far, counted for each child process."""
        return sum(replica.reloads for replica in self._all)

    @property
    def refusals(self) -> list[str]:
        """Reasons for which child processes refused weights and were started again."""
        return [reason for replica in self._all for reason in replica.refusals]

    @property
    def sources(self) -> list[ReadyEngine]:
        """The engines that are ready, with the weights that they serve."""
        pool = self._engine._pool
        return [] if pool is None else list(pool.ready().values())

    @property
    def version(self) -> str:
        """The engine's version; empty before `ensure`."""
        return self.sources[0].version if self.sources else ""
