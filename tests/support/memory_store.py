"""Stores in the memory of this process, for tests that need no other."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

from artifacts.store.keys import FileDigest, MissingKeyError, Progress, Stray, Unfinished, too_large
from artifacts.store.store import BACKENDS

_CHUNK_BYTES = 4 << 20
_STORES: dict[str, dict[str, bytes]] = {}
_LOCK = threading.Lock()


class MemoryBackend:
    """A store in memory. All stores of one name in a process share their content; other processes do not see it."""

    parallel_transfers = 4

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}"
        with _LOCK:
            self._content = _STORES.setdefault(name, {})

    def read(self, key: str, most_bytes: int) -> bytes:
        data = self._data(key)
        if len(data) > most_bytes:
            raise too_large(f"{key} in {self.url}", len(data), most_bytes)
        return data

    def write(self, key: str, data: bytes) -> None:
        with _LOCK:
            self._content[key] = bytes(data)

    def create(self, key: str, data: bytes) -> bool:
        with _LOCK:
            if key in self._content:
                return False
            self._content[key] = bytes(data)
            return True

    def size(self, key: str) -> int:
        return len(self._data(key))

    def keys(self, prefix: str) -> list[str]:
        with _LOCK:
            return sorted(key for key in self._content if not prefix or key == prefix or key.startswith(f"{prefix}/"))

    def walk(self, prefix: str) -> Iterator[str]:
        yield from self.keys(prefix)

    def strays(self, prefix: str) -> list[Stray]:
        return []

    def folders(self, prefix: str) -> tuple[list[str], list[Stray]]:
        below = f"{prefix}/" if prefix else ""
        rests = (key[len(below) :].partition("/") for key in self.keys(prefix) if key != prefix)
        return sorted({name for name, slash, _ in rests if slash}), []

    def remove(self, keys: list[str]) -> None:
        with _LOCK:
            for key in keys:
                self._content.pop(key, None)

    def unfinished(self, prefix: str) -> list[Unfinished]:
        return []

    def remove_unfinished(self, write: Unfinished) -> None:
        """Does nothing: a write ends at once."""

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest:
        data = local.read_bytes()
        self.write(key, data)
        progress(len(data))
        return FileDigest(hashlib.sha256(data).hexdigest(), len(data))

    def chunks(self, key: str) -> Iterator[bytes]:
        data = self._data(key)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]

    def local_path(self, key: str) -> Path | None:
        return None

    def refuses_second_create(self) -> bool:
        return True

    def abandon(self) -> None:
        """Does nothing: no transfer takes long."""

    def _data(self, key: str) -> bytes:
        with _LOCK:
            if key not in self._content:
                raise MissingKeyError(f"{key} in {self.url}", "no such key")
            return self._content[key]


def register() -> None:
    """Lets `Store.open("memory://name")` open a store in memory, in this process."""
    BACKENDS["memory"] = lambda name, prefix, _: MemoryBackend(f"{name}/{prefix}".strip("/"))
