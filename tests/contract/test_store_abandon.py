"""Whoever is told to end does not wait for gigabytes that are on their way."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from artifacts.errors import StoreError
from artifacts.store import Store
from artifacts.store_s3_requests import S3Requests
from tests.contract.conftest import BUCKET
from tests.servers import S3Server

PART_BYTES = 5 << 20
FILES, PARTS = 6, 8


@contextmanager
def interrupted(after_s: float) -> Generator[None]:
    """Raises what Ctrl-C does, in this thread."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_transfer_after_the_parts_on_their_way(rclone: S3Server, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.bin").write_bytes(bytes(PARTS * PART_BYTES))
    options = rclone.options(part_bytes=PART_BYTES)
    store = Store.open(f"s3://{BUCKET}/abandoned", options=options)
    sent: list[int] = []

    def slowly(moved_bytes: int) -> None:
        sent.append(moved_bytes)
        time.sleep(0.3)

    with interrupted(1.0):
        store.upload_tree(folder, "up", slowly)
    assert 0 < len(sent) < FILES * PARTS // 2
    left = S3Requests(BUCKET, "", options).call("list_multipart_uploads", Prefix="abandoned")
    assert left.get("Uploads", []) == []
    with pytest.raises(StoreError, match="given up"):
        store.write_bytes("late", b"x")
    whole = Store.open(f"s3://{BUCKET}/abandoned", options=options)
    assert whole.list() == []
    assert len(whole.upload_tree(folder, "up")) == FILES
