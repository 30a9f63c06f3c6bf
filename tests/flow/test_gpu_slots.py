"""A run that waits for its GPU slot, and keeps it while the server is away."""

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from flows.orchestration.gpu_lease import LEASE_S
from tests.support.deployed_story import ZOMBIE_AFTER_S, tiny
from tests.support.installed import ONE_ENGINE, Installation

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def gpu_profile(installation: Installation) -> str:
    path = installation.folder / "gpu.toml"
    path.write_text('gpu_slot = "gpu"\n' + ONE_ENGINE.read_text() + "device = 'cpu'\n")
    return str(path)


def slots_taken(installed: Installation) -> int:
    return installed.api("GET", "/v2/concurrency_limits/gpu")["active_slots"]


def leases(installed: Installation) -> dict[str, datetime]:
    """When each lease runs out, by id: what the server keeps beside its database."""
    folder = installed.store / ".prefect" / "concurrency_leases"
    contents = [json.loads(path.read_bytes()) for path in folder.glob("*-*.json")]
    return {lease["id"]: datetime.fromisoformat(lease["expiration"]) for lease in contents}


def test_a_run_waits_for_the_gpu_and_keeps_it_while_the_server_is_away(
    installation: Installation, gpu_profile: str
) -> None:
    idle = set(installation.processes())
    lease = installation.api(
        "POST", "/v2/concurrency_limits/increment-with-lease",
        {"names": ["gpu"], "slots": 1, "mode": "concurrency", "lease_duration": 300},
    )  # fmt: skip
    request = tiny(installation.folder, run="holder", profile=gpu_profile, overrides=["warm_start.epochs=25000"])
    run = installation.create_run("train/quickstart", request)
    installation.wait(lambda: installation.tasks(run, 1).get("sft-warm-start") == "Running")
    assert installation.tasks(run, 1)["fetch"] in {"Cached", "Completed"}  # what needs no GPU went ahead
    time.sleep(3)
    commands = [command for pid, command in installation.processes().items() if pid not in idle]
    assert not any("stages.training" in command or "server.py" in command for command in commands)

    installation.api("POST", "/v2/concurrency_limits/decrement-with-lease", {"lease_id": lease["lease_id"]})
    installation.wait(lambda: bool(leases(installation).keys() - {lease["lease_id"]}))

    # The server dies and comes back: the holder keeps its slot, whoever waits goes on waiting.
    waiting = tiny(installation.folder, run="waiting", profile=gpu_profile)
    second = installation.create_run("train/quickstart", waiting)
    installation.wait(lambda: installation.tasks(second, 1).get("sft-warm-start") == "Running")
    (lease,) = leases(installation)
    before = installation.record
    os.kill(before["server"]["pid"], signal.SIGKILL)
    installation.wait(lambda: before["server"]["pid"] not in installation.processes())
    port = before["url"].split(":")[2].split("/")[0]
    after = installation.up("--port", port, "--zombie-after", str(ZOMBIE_AFTER_S))
    assert (after["worker"], after["url"]) == (before["worker"], before["url"])
    came_back = datetime.now(UTC)
    assert [installation.state(one) for one in (run, second)] == ["Running", "Running"]
    installation.wait(lambda: leases(installation)[lease] > came_back + timedelta(seconds=LEASE_S), 5 * LEASE_S)
    assert (slots_taken(installation), list(leases(installation))) == (1, [lease])
    assert installation.tasks(second, 1)["sft-warm-start"] == "Running"

    installation.cancel(run)
    installation.wait_for(run, "Cancelled")
    installation.wait(lambda: bool(leases(installation).keys() - {lease}))
    assert (slots_taken(installation), installation.state(second)) == (1, "Running")
    installation.cancel(second)
    installation.wait_for(second, "Cancelled")
    installation.wait(lambda: slots_taken(installation) == 0)
