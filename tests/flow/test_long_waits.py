"""What a run waits for, and what it says of it: `docs/operate.md` has the stories, and the tests of the others."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from prefect import flow, task
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED

from artifacts.errors import DeerstalkerError, StoreError
from artifacts.store.store import S3Options, Store
from flows.orchestration.server.api_access import wait_for_external_server
from flows.orchestration.server.backend import PrefectBackend
from stages.processes.awake import LONGEST_GAP_S
from tests.support.asleep import LIMIT_S
from tests.support.certificates import write_expired
from tests.support.full_disks import SmallDisk
from tests.support.prefect_server import own_server, prefect_api, reporting_to, without_prefect
from tests.support.servers import rclone_server

WAITER = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from flows.orchestration.gpu_lease import GpuLease
lease = GpuLease("gpu", logging.getLogger("waits"))
lease.take()
lease.give_back()
"""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    disk = SmallDisk(tmp_path_factory.mktemp("waits") / "disk", "tmpfs")
    yield disk
    disk.unmount()


@pytest.fixture(scope="module")
def api(disk: SmallDisk) -> Iterator[str]:
    """A server whose database is on the small disk."""
    leases = "prefect.server.concurrency.lease_storage.filesystem"
    variables = {
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": leases,
        "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
    }
    with own_server(disk.folder, **variables) as api:
        yield api


@pytest.mark.long
def test_a_run_waits_for_the_slot_of_a_lost_machine_and_says_so(api: str, disk: SmallDisk) -> None:
    """The holder renews nothing, and its lease runs out as if a minute had passed."""
    prefect_api(api, "POST", "/v2/concurrency_limits/", {"name": "gpu", "limit": 1})
    content = {"names": ["gpu"], "slots": 1, "mode": "concurrency", "lease_duration": 60}
    prefect_api(api, "POST", "/v2/concurrency_limits/increment-with-lease", content)
    environment = {**without_prefect(), "PREFECT_API_URL": api}
    with subprocess.Popen([sys.executable, "-c", WAITER], stdout=subprocess.PIPE, text=True, env=environment) as waiter:
        assert waiter.stdout is not None
        waits = waiter.stdout.readline()
        now = datetime.now(UTC).isoformat()
        for path in (disk.folder / "concurrency_leases").glob("*.json"):
            lease = json.loads(path.read_bytes())  # or the file with the times of all
            changed = lease | {"expiration": now} if "expiration" in lease else dict.fromkeys(lease, now)
            path.write_text(json.dumps(changed))
        (has,) = waiter.communicate(timeout=100)[0].splitlines()
    assert waits.startswith("waiting for a GPU: all 1 slots of the limit 'gpu' are taken; expected a free one; ")
    assert "that of a lost machine after 60 s" in waits and "prefect gcl update gpu --active-slots 0" in waits
    assert has.startswith("has a slot of gpu after ")
    assert prefect_api(api, "GET", "/v2/concurrency_limits/gpu")["active_slots"] == 0


def test_a_full_database_ends_a_run_with_one_line_and_the_next_one_works(
    api: str, disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of a server elsewhere, on which this process looks at nothing."""

    @task
    def stage() -> int:
        return 1

    @flow(name="full")
    def run(*, full: bool) -> int:
        if full:
            disk.fill(0)
        return stage()

    monkeypatch.setenv("PREFECT_API_URL", api)
    with reporting_to(api, {PREFECT_LOGGING_TO_API_ENABLED: False}):
        try:
            with (
                pytest.raises(DeerstalkerError) as raised,
                PrefectBackend(tmp_path / "log") as backend,
                backend.ready(),
            ):
                run(full=True)
        finally:
            disk.free()
        assert raised.value.line.startswith(
            f"Prefect API {api}: HTTP 500; expected a server that can do what is asked; see the server's log, and "
            "whether the disk of its database is full; then the same command continues where it stopped"
        )
        with PrefectBackend(tmp_path / "log") as backend, backend.ready():
            assert run(full=False) == 1


def test_an_expired_certificate_and_a_name_without_an_answer_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_expired(tmp_path)
    for variable in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(variable, str(certificate))
    line = (
        r"its certificate is refused \(certificate has expired\); expected a certificate that is trusted and valid "
        "now; renew it on the server, or set this machine's clock if that is wrong"
    )
    with rclone_server(tmp_path / "served", "--cert", str(certificate), "--key", str(key)) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(StoreError, match=line):
            Store.open("s3://bucket", options=server.options(endpoint_url=url))
        with pytest.raises(DeerstalkerError, match=line):
            wait_for_external_server(f"{url}/api", None)
    nowhere = S3Options(endpoint_url="http://store.invalid", access_key="a", secret_key="b", region="us-east-1")
    with pytest.raises(StoreError, match=r"its name cannot be resolved \(.*expected an S3 endpoint that answers"):
        Store.open("s3://bucket", options=nowhere)


@pytest.mark.release  # half a minute
def test_nothing_is_taken_for_hung_when_all_of_a_run_sleeps(tmp_path: Path) -> None:
    """A trainer in a job, and code of a user in a call, each with a limit that is shorter than the sleep."""
    command = [sys.executable, "-m", "tests.support.asleep", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "both at work\n"
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            one.send_signal(signal.SIGSTOP)
        time.sleep(LONGEST_GAP_S + 2 * LIMIT_S)
        for one in family:
            one.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=200)
    assert said.splitlines() == ["call: None", "trained"]
