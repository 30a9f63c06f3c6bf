"""Writer and planners for torch's distributed checkpoints: reproducible files, and progress reports per tensor."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import ReadItem, WriteItem


class StateWriter(FileSystemWriter):
    """Leaves the folder's path and a random number out of the files, so that equal states have equal digests."""

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta()


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
