"""A lease on a slot of a global concurrency limit of Prefect, which survives restarts of the server.

Prefect's own `concurrency` renews a lease after three quarters of its duration and stops after three failures. If the
server is unavailable at that moment, the run loses its slot, and a second run starts beside it. This lease is renewed
often, does not give up, and takes the slot again if the server released it meanwhile.
"""

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from artifacts.errors import DeerstalkerError

LEASE_S = 60.0
"""Time after which the slot of a dead holder is free; the shortest lease that Prefect grants."""
RENEW_EVERY_S = 10.0
_RETRY_EVERY_S = 1.0
_POLL_EVERY_S = 3.0
_REQUEST_TIMEOUT_S = 15.0
_JOIN_TIMEOUT_S = 2.0
_NONE_FREE = (
    "all {slots} slots of the limit {limit!r} are taken; expected a free one; the run goes on as soon as another gives "
    "its slot back, that of a lost machine after {lease_s:.0f} s; if no other run is alive: `prefect gcl update "
    "{limit} --active-slots 0`"
)
_UNTIL_IT_ANSWERS = "expected an answer; the run goes on as soon as there is one"


class GpuLease:
    """A lease on one slot of a limit. All methods are thread-safe.

    Args:
        limit: Name of the limit; a missing limit is created with one slot.
        log: Logs why it waits, and when a slot was lost and taken again.
    """

    def __init__(self, limit: str, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        self.limit, self._log = limit, log
        self._lease: UUID | None = None
        self._obstacle = ""
        self._ending = threading.Event()
        self._renewal_thread: threading.Thread | None = None

    def take(self, *, waits: bool = True) -> bool:
        """Waits for a slot, without a time limit, and returns True; with `waits` False, returns False if none is free.

        Raises:
            DeerstalkerError: `give_back` was called before or during the wait.
        """
        began, said = time.monotonic(), ""
        with _client() as client:
            lease = None
            while lease is None:
                if self._ending.is_set():
                    raise self._ended()
                if (lease := self._request(client)) is None:
                    if not waits:
                        return False
                    if self._obstacle != said:
                        said = self._obstacle
                        self._log.warning("waiting for a GPU: %s", said)
                    self._ending.wait(_POLL_EVERY_S)
            if self._ending.is_set():  # `give_back` was called during the request
                client.release_concurrency_slots_with_lease(lease)
                raise self._ended()
        if said:
            self._log.warning("has a slot of %s after %.0f s", self.limit, time.monotonic() - began)
        self._lease = lease
        self._renewal_thread = threading.Thread(target=self._keep_renewing, name=f"lease of {self.limit}", daemon=True)
        self._renewal_thread.start()
        return True

    def _ended(self) -> DeerstalkerError:
        return DeerstalkerError(f"slot of {self.limit}", "the run ended while waiting", "a run that goes on")

    def give_back(self) -> None:
        """Frees the slot, or ends the wait for one; if the server does not answer, the slot is free after `LEASE_S`."""
        self._ending.set()
        if self._renewal_thread is not None:
            self._renewal_thread.join(_JOIN_TIMEOUT_S)
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            with _client() as client:
                client.release_concurrency_slots_with_lease(lease)
        except httpx.HTTPError as error:
            self._log.warning("the slot of %s stays taken for up to %.0f s: %s", self.limit, LEASE_S, error)

    def _request(self, client: SyncPrefectClient) -> UUID | None:
        """Requests a slot and returns its lease; None if there is an obstacle, which it notes."""
        slots = 0
        try:
            slots = ensure_limit(client, self.limit)
            answer = client.increment_concurrency_slots_with_lease([self.limit], 1, "concurrency", LEASE_S)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == HTTPStatus.LOCKED:
                self._obstacle = _NONE_FREE.format(limit=self.limit, slots=slots, lease_s=LEASE_S)
            elif error.response.is_server_error:
                self._obstacle = f"the Prefect API answers HTTP {error.response.status_code}; {_UNTIL_IT_ANSWERS}"
            else:
                raise
            return None
        except httpx.TransportError as error:
            self._obstacle = f"the Prefect API does not answer ({type(error).__name__}); {_UNTIL_IT_ANSWERS}"
            return None
        return UUID(answer.json()["lease_id"])

    def _keep_renewing(self) -> None:
        pause = RENEW_EVERY_S
        with _client() as client:
            while not self._ending.wait(pause):
                pause = RENEW_EVERY_S if self._renew(client) else _RETRY_EVERY_S

    def _renew(self, client: SyncPrefectClient) -> bool:
        """Renews the lease, or takes the slot again if it was lost; returns whether there is a valid lease now."""
        try:
            if self._lease is not None:
                client.renew_concurrency_lease(self._lease, LEASE_S)
                return True
        except httpx.HTTPStatusError as error:
            if error.response.status_code != HTTPStatus.GONE:
                return False
            self._log.warning(
                "the slot of %s was lost, because the server or this machine was away for %.0f s or a clock was set; "
                "taking it again; until then, another run may compute on the same GPU", self.limit, LEASE_S,
            )  # fmt: skip
        except httpx.HTTPError:
            return False
        if self._ending.is_set():
            return False
        try:
            lease = self._request(client)
            if lease is not None and self._ending.is_set():  # `give_back` did not wait for this request
                client.release_concurrency_slots_with_lease(lease)
                lease = None
            self._lease = lease
        except httpx.HTTPError:  # `take` would raise this error; here the next attempt may succeed
            return False
        return self._lease is not None


def ensure_limit(client: SyncPrefectClient, name: str) -> int:
    """Creates a limit with one slot unless it exists, and returns its number of slots."""
    try:
        return client.read_global_concurrency_limit_by_name(name).limit
    except ObjectNotFound:
        with suppress(ObjectAlreadyExists):
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        return 1


@contextmanager
def _client() -> Generator[SyncPrefectClient]:
    """Yields a client that does not retry, because this module decides how long to wait."""
    settings = {"timeout": _REQUEST_TIMEOUT_S}
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(settings, sync_client=True) as client:
        yield client
