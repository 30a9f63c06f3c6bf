"""What our Prefect server does otherwise than Prefect's own.

It writes to its end, refuses no writer, and does not wait for itself.
"""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import prefect
import pytest
from packaging.version import Version

from flows.orchestration.server.prefect_workarounds import FIXED_IN, Finishing
from tests.support.prefect_server import own_server, without_prefect

WRITTEN_UNDER_THE_LOCK = """
import asyncio
from prefect.server.database import provide_database_interface
from prefect.server.events import triggers
from prefect.server.events.actions import DoNothing
from prefect.server.events.models import automations
from prefect.server.events.schemas.automations import Automation, EventTrigger
from flows.orchestration.server.database_template import fill_new_database
from flows.orchestration.server.prefect_workarounds import announce_on_the_loop

async def write():
    trigger = EventTrigger(posture="Reactive", threshold=1, within=10)
    wanted = Automation(name="new", trigger=trigger, actions=[DoNothing()])
    async with triggers._automations_lock():
        async with provide_database_interface().session_context(begin_transaction=True) as session:
            await automations.create_automation(session, wanted)
        print("written")
    while not triggers.automations_by_id:
        await asyncio.sleep(0.01)
    print("taken in:", *(one.name for one in triggers.automations_by_id.values()))

fill_new_database()
announce_on_the_loop()
asyncio.run(write())
"""
"""What a server does where a request writes an automation while its own look for changes, every 5 s, holds the lock."""


def test_a_batch_that_is_being_written_is_written_though_its_writer_is_cancelled() -> None:
    written: list[str] = []

    async def write(batch: str) -> None:
        await asyncio.sleep(0.05)
        written.append(batch)

    async def serve() -> None:
        record = Finishing(write)
        writer = asyncio.create_task(record("last"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writer.cancel()
        await asyncio.wait([writer])
        assert writer.cancelled() and not written
        await record.finished()

    asyncio.run(serve())
    assert written == ["last"]


@pytest.mark.parametrize("workaround", FIXED_IN, ids=lambda workaround: workaround.__name__)
def test_a_workaround_goes_with_the_version_that_needs_it_no_more(workaround: Callable[[], None]) -> None:
    fixed_in = FIXED_IN[workaround]
    assert fixed_in is None or Version(prefect.__version__) < Version(fixed_in), "delete it from prefect_workarounds"


@pytest.mark.long
def test_of_many_who_write_at_once_none_is_refused(tmp_path: Path) -> None:
    """Prefect's own server answers nine in ten of these requests with 503."""
    with (
        own_server(tmp_path) as api,
        httpx.Client(base_url=api, timeout=600, trust_env=False) as client,
        ThreadPoolExecutor(8) as writers,
    ):
        flow = client.post("/flows/", json={"name": "busy"}).json()["id"]

        def write(number: int) -> int:
            return client.post("/deployments/", json={"name": f"d{number % 7}", "flow_id": flow}).status_code

        answers = Counter(writers.map(write, range(80)))
    assert set(answers) <= {httpx.codes.OK, httpx.codes.CREATED}, answers


def test_an_automation_written_while_the_server_looks_for_changes_does_not_stop_it(tmp_path: Path) -> None:
    """Prefect 3.7's own server never answers again."""
    environment = {**without_prefect(), "PREFECT_HOME": str(tmp_path), "DO_NOT_TRACK": "1"}
    command = [sys.executable, "-c", WRITTEN_UNDER_THE_LOCK]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600, check=False)
    assert done.stdout.splitlines() == ["written", "taken in: new"], done.stderr
