"""The lease of a GPU slot, on a Prefect server."""

import logging

from prefect.client.orchestration import get_client

from flows.orchestration.gpu_lease import GpuLease
from tests.support.prefect_server import reporting_to


def test_a_renewal_that_outlives_its_lease_takes_no_slot(prefect_api_url: str) -> None:
    """`give_back` waits two seconds for a renewal; a busy server may answer it later, that the lease is gone."""
    lease = GpuLease("given-back", logging.getLogger(__name__))
    with reporting_to(prefect_api_url), get_client(sync_client=True) as client:
        lease.take()
        assert client.read_global_concurrency_limit_by_name("given-back").active_slots == 1
        held = lease._lease
        lease.give_back()
        lease._lease = held  # as the renewal saw it
        assert not lease._renew(client)
        assert client.read_global_concurrency_limit_by_name("given-back").active_slots == 0
