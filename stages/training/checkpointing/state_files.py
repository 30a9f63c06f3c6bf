"""Writer and planners for torch's distributed checkpoints: reproducible files, and progress reports per tensor."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystemWriter,
    _write_files_from_queue,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import ReadItem, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

_MOST_FILES = 4
"""Files that a process writes at once; a single one is limited by the checksums that torch computes."""
FILE_BYTES = 64 << 20
"""A smaller state has one file."""


class StateWriter(FileSystemWriter):
    """Writes files in parallel that do not depend on the folder or the machine: equal states have equal digests.

    Args:
        folder: Folder of the state, which exists.
        size_bytes: Bytes that this process writes, on which the number of its files depends.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        files = max(1, min(_MOST_FILES, size_bytes // FILE_BYTES))
        super().__init__(folder, sync_files=False, thread_count=files)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta()

    def _write_data(self, planner: SavePlanner, file_queue: Queue[Any]) -> Future[list[WriteResult]]:
        """Replaces torch's own (2.13), which loses errors of all threads but the first, such as a full disk."""
        results: Queue[list[WriteResult]] = Queue()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

        def write() -> None:
            if device is not None:
                torch.cuda.set_device(device)  # holds for a thread; torch waits for the copies of its own device only
            _write_files_from_queue(
                self.fs.create_stream, file_queue, results, planner, self.transforms, self.per_thread_copy_ahead,
                self.sync_files, self.thread_count, self.serialization_format,
            )  # fmt: skip

        with ThreadPoolExecutor(self.thread_count, thread_name_prefix="state") as pool:
            for written in [pool.submit(write) for _ in range(self.thread_count)]:
                written.result()
        every = [result for _ in range(results.qsize()) for result in results.get()]
        future: Future[list[WriteResult]] = Future()
        # The order is that of the file of metadata.
        future.set_result(sorted(every, key=lambda item: (item.storage_data.relative_path, item.storage_data.offset)))
        return future


class HeartbeatSavePlanner(DefaultSavePlanner):
    """Calls `heartbeat` for each tensor that is written."""

    def __init__(self, heartbeat: Callable[[], None]) -> None:
        super().__init__()
        self._heartbeat = heartbeat

    def resolve_data(self, write_item: WriteItem) -> Any:
        self._heartbeat()
        return super().resolve_data(write_item)


class HeartbeatLoadPlanner(DefaultLoadPlanner):
    """Calls `heartbeat` for each tensor that is read."""

    def __init__(self, heartbeat: Callable[[], None]) -> None:
        super().__init__()
        self._heartbeat = heartbeat

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        self._heartbeat()
        super().commit_tensor(read_item, tensor)
