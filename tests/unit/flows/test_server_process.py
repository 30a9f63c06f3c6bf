"""What our Prefect server does otherwise than Prefect's own: it writes to its end, and refuses no writer."""

import asyncio
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from flows.local_server import database_lock, end, start_server, wait_until_healthy
from flows.server_process import Finishing
from tests.prefect_server import without_prefect


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


@pytest.fixture
def api(tmp_path: Path) -> Generator[str]:
    """Address of a server as `deerstalker up` starts it."""
    with database_lock(tmp_path) as (lock, _):
        environment = {**without_prefect(), "PREFECT_HOME": str(tmp_path), "DO_NOT_TRACK": "1"}
        url, started = start_server(tmp_path, 0, lock, environment)
    try:
        wait_until_healthy(url, started, tmp_path / "server.log")
        yield url
    finally:
        end(started)


def test_of_many_who_write_at_once_none_is_refused(api: str) -> None:
    """Prefect's own server answers nine in ten of these requests with 503."""
    with httpx.Client(base_url=api, timeout=120, trust_env=False) as client, ThreadPoolExecutor(8) as writers:
        flow = client.post("/flows/", json={"name": "busy"}).json()["id"]

        def write(number: int) -> int:
            return client.post("/deployments/", json={"name": f"d{number % 7}", "flow_id": flow}).status_code

        answers = Counter(writers.map(write, range(80)))
    assert set(answers) <= {httpx.codes.OK, httpx.codes.CREATED}, answers
