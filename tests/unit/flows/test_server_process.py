"""What a Prefect server writes when it is ended."""

import asyncio

from flows.server_process import Finishing


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
