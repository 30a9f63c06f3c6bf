"""A slot of one of Prefect's global concurrency limits, held as a lease that survives what happens to the server.

Prefect's own `concurrency` renews a lease at three quarters of its life and gives up for good after three failures: a
server that is away at that moment costs a run its slot, and a second run starts beside it. This one renews often, never
gives up, and takes the slot again where the server let it go meanwhile.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from artifacts.errors import DeerstalkerError

LEASE_S = 60.0
"""A holder that died frees its slot after so long; Prefect grants no shorter lease."""
RENEW_EVERY_S = 10.0
_RETRY_EVERY_S = 1.0
_ASK_EVERY_S = 3.0
_ANSWER_LIMIT_S = 15.0
_PARTING_LIMIT_S = 2.0


class GpuLease:
    """One slot of a limit. Every call may be made from any thread.

    Args:
        limit: Name of the limit; one that is missing is made, with one slot.
        log: Told when a slot was lost and taken again.
    """

    def __init__(self, limit: str, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self.limit, self._log = limit, log
        self._lease: UUID | None = None
        self._ending = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> None:
        """Waits for a slot, however long the others or the server take.

        Raises:
            DeerstalkerError: `give_back` was called, before or meanwhile.
        """
        with _client() as client:
            lease = None
            while lease is None:
                if self._ending.is_set():
                    raise DeerstalkerError(f"slot of {self.limit}", "the wait was given up", "a run that goes on")
                if (lease := self._asked(client)) is None:
                    self._ending.wait(_ASK_EVERY_S)
        self._lease = lease
        self._renewing = threading.Thread(target=self._renew, name=f"lease of {self.limit}", daemon=True)
        self._renewing.start()

    def give_back(self) -> None:
        """Frees the slot, or stops waiting for one. A server that does not answer frees it when the lease runs out."""
        self._ending.set()
        if self._renewing is not None:
            self._renewing.join(_PARTING_LIMIT_S)
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            with _client() as client:
                client.release_concurrency_slots_with_lease(lease)
        except httpx.HTTPError as error:
            self._log.warning("the slot of %s comes free in %.0f s: %s", self.limit, LEASE_S, error)

    def _asked(self, client: SyncPrefectClient) -> UUID | None:
        """The lease of a slot; None where none is free or nobody answers."""
        try:
            ensure_limit(client, self.limit)
            answer = client.increment_concurrency_slots_with_lease([self.limit], 1, "concurrency", LEASE_S)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == HTTPStatus.LOCKED or error.response.is_server_error:
                return None
            raise
        except httpx.TransportError:
            return None
        return UUID(answer.json()["lease_id"])

    def _renew(self) -> None:
        pause = RENEW_EVERY_S
        with _client() as client:
            while not self._ending.wait(pause):
                pause = RENEW_EVERY_S if self._renewed(client) else _RETRY_EVERY_S

    def _renewed(self, client: SyncPrefectClient) -> bool:
        try:
            if self._lease is not None:
                client.renew_concurrency_lease(self._lease, LEASE_S)
                return True
        except httpx.HTTPStatusError as error:
            if error.response.status_code != HTTPStatus.GONE:
                return False
            self._log.warning("the slot of %s was lost while the server was away; taking it again", self.limit)
        except httpx.HTTPError:
            return False
        self._lease = self._asked(client)
        return self._lease is not None


def ensure_limit(client: SyncPrefectClient, name: str) -> None:
    """Makes a limit with one slot where there is none of that name."""
    try:
        client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        try:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        except ObjectAlreadyExists:
            return


@contextmanager
def _client() -> Generator[SyncPrefectClient]:
    """A client that says at once what is wrong: waiting, and for how long, is decided here."""
    settings = {"timeout": _ANSWER_LIMIT_S}
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(settings, sync_client=True) as client:
        yield client
