"""Whoever is told to end does not wait for gigabytes that are on their way."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from artifacts.errors import StoreError
from artifacts.store.s3_requests import S3Requests
from artifacts.store.store import Store
from tests.support.servers import BUCKET, S3Server
from tests.support.waiting import wait_until

PART_BYTES = 5 << 20
FILES, PARTS = 6, 8
SENT_BEFORE = 4
LIMIT_S = 300


@contextmanager
def interruptible() -> Generator[Callable[[], None]]:
    """Expects that what Ctrl-C raises ends the block; yields what causes that, once, however many threads call it."""
    raised = threading.Event()

    def interrupt(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt

    def cause() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert raised.wait(LIMIT_S)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield cause
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.long
def test_a_signal_ends_a_transfer_after_the_parts_on_their_way(rclone: S3Server, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.bin").write_bytes(bytes(PARTS * PART_BYTES))
    options = rclone.options(part_bytes=PART_BYTES)
    store = Store.open(f"s3://{BUCKET}/abandoned", options=options)
    sent: list[int] = []
    numbers = count(1)

    def given_up() -> bool:
        with suppress(StoreError):
            store.exists("probe")
            return False
        return True

    with interruptible() as interrupt:

        def slowly(moved_bytes: int) -> None:
            sent.append(moved_bytes)
            if next(numbers) >= SENT_BEFORE:
                interrupt()
                wait_until(given_up, LIMIT_S)

        store.upload_tree(folder, "up", slowly)
    assert SENT_BEFORE <= len(sent) <= SENT_BEFORE + options.parallel_transfers
    left = S3Requests(BUCKET, "", options).call("list_multipart_uploads", Prefix="abandoned")
    assert left.get("Uploads", []) == []
    with pytest.raises(StoreError, match="given up"):
        store.write_bytes("late", b"x")
    whole = Store.open(f"s3://{BUCKET}/abandoned", options=options)
    assert whole.list() == []
    assert len(whole.upload_tree(folder, "up")) == FILES
