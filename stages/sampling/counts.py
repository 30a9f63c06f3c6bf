"""Counts of what an engine core has done so far; its scheduler writes them after every step, its server reports them.

vLLM's own statistics would send a message from the core to the server in every step. Here each core writes 40 bytes
into memory that the server shares with it. With a file on a disk, a step would wait while the kernel writes a page of
it back.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Self

COUNTS_PATH = "/sampling/counts"
"""Path at which a server reports the counts of its cores, as JSON."""
COUNTS_VARIABLE = "DEERSTALKER_ENGINE_COUNTS"
"""Environment variable with the path of the memory in which the cores of a server write their counts."""
_MOST_CORES = 1024
_FORMAT = struct.Struct("<5d")


def make_shared_memory() -> str:
    """Returns the path of memory for the counts, which this process and its children can open while this one lives."""
    descriptor = os.memfd_create("engine-counts")
    os.ftruncate(descriptor, _MOST_CORES * _FORMAT.size)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


@dataclass(frozen=True)
class Counts:
    """Counts of an engine since its start.

    Attributes:
        steps: Steps of the model.
        tokens: Tokens that were sampled.
        preemptions: Preemptions of a sequence because the KV cache was full.
        waiting: Sequences that have not begun, at present.
        kv_cache_use: Share of the KV cache in use at present, 0 to 1.
    """

    steps: float = 0.0
    tokens: float = 0.0
    preemptions: float = 0.0
    waiting: float = 0.0
    kv_cache_use: float = 0.0

    @classmethod
    def of_cores(cls, path: str) -> Self:
        """Returns the counts of a server's cores together. The use of the KV cache is that of the fullest."""
        each = [cls(*values) for values in _FORMAT.iter_unpack(Path(path).read_bytes())]
        return cls(
            sum(counts.steps for counts in each),
            sum(counts.tokens for counts in each),
            sum(counts.preemptions for counts in each),
            sum(counts.waiting for counts in each),
            max(counts.kv_cache_use for counts in each),
        )

    @classmethod
    def of_answer(cls, answer: Mapping[str, float]) -> Self:
        """Returns the counts in a server's answer."""
        return cls(**{name: float(answer[name]) for name in cls.__dataclass_fields__})

    def answer(self) -> dict[str, float]:
        """Returns a server's answer."""
        return asdict(self)


class CoreCounts:
    """The counts of one core, to write.

    Args:
        path: Path of the server's memory.
        rank: Number of the core among those of the server.
    """

    def __init__(self, path: str, rank: int) -> None:
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._offset = rank * _FORMAT.size

    def write(self, counts: Counts) -> None:
        """Replaces the counts."""
        _FORMAT.pack_into(self._memory, self._offset, *astuple(counts))
