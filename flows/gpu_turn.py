"""A run's turn on a GPU: a slot of Prefect's global concurrency limit, leased while engine or trainer may use it."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from threading import Lock
from types import TracebackType
from typing import Literal, Self

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

LEASE_S = 60.0
"""A holder that died frees its slot after so long; a living one renews its lease in time."""


class GpuTurn:
    """Waits for a slot when a GPU is first needed, so that stages on the CPU and stages found published never wait.

    Args:
        limit: Name of the limit; None takes no slot. One that is missing is made, with one slot.
        spans: Give the slot back at the end of the run or of each stage.

    Attributes:
        users: End what uses the GPU, called before a slot is given back behind a stage.
    """

    def __init__(self, limit: str | None, spans: Literal["run", "stage"]) -> None:
        self.limit, self.spans = limit, spans
        self.users: list[Callable[[], None]] = []
        self._held = ExitStack()
        self._lock = Lock()
        self.held = False

    def take(self) -> None:
        """Waits for a slot, unless one is held."""
        if self.limit is None:
            return
        with self._lock:
            if self.held:
                return
            ensure_limit(self.limit)
            # A lost connection must not end hours of training: the lease is renewed at the next chance.
            slot = concurrency(self.limit, strict=True, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False)
            self._held.enter_context(slot)
            self.held = True

    def stage_ended(self) -> None:
        """Ends what uses the GPU and gives the slot back, where it spans a stage."""
        if self.held and self.spans == "stage":
            for end in self.users:
                end()
            self._give_back()

    def _give_back(self) -> None:
        self.held = False
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()


_open: dict[str | None, GpuTurn] = {}


@contextmanager
def gpu_turn(limit: str | None, spans: Literal["run", "stage"]) -> Generator[GpuTurn]:
    """The turn of this process: engines side by side in one flow run share it, for they would wait for one another."""
    if shared := _open.get(limit):
        yield shared
        return
    with GpuTurn(limit, spans) as turn:
        _open[limit] = turn
        try:
            yield turn
        finally:
            del _open[limit]


def ensure_limit(name: str) -> None:
    """Makes a limit with one slot where there is none of that name."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            try:
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
            except ObjectAlreadyExists:
                return
