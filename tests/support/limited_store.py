"""Runs `deerstalker` with a store of limited speed, and writes down when its stages begin and end.

Usage: `python -P tests/support/limited_store.py EVENTS MB_PER_S COMMAND...`. A store in a folder then behaves like a
remote one: files are copied into it and out of it, and all copies in one direction share the limit. Files are written
by several threads, which hash meanwhile. EVENTS gets a JSON line for each event: `time_s`, `event` and `name`.

This file also runs with earlier commits of the code, whose folder PYTHONPATH names.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import IO, Any

import artifacts.store.store as store_module
from artifacts.store.directory import DirectoryBackend
from artifacts.store.keys import FileDigest, Progress
from flows.cli.app import main
from flows.report.terminal.live import LiveView


class Limit:
    """Bytes a second that several threads share."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._lock, self._free_at_s = bytes_per_s, Lock(), 0.0

    def take(self, size_bytes: int) -> None:
        """Waits until this many bytes may have passed."""
        with self._lock:
            self._free_at_s = max(self._free_at_s, time.monotonic()) + size_bytes / self._bytes_per_s
            wait_s = self._free_at_s - time.monotonic()
        time.sleep(max(0.0, wait_s))


class LimitedBackend(DirectoryBackend):
    """A folder that is reached at a limited speed."""

    up, down = Limit(float("inf")), Limit(float("inf"))

    def local_path(self, key: str) -> Path | None:
        return None

    def send(self, local: Path, key: str, progress: Progress) -> FileDigest:
        def counted(moved_bytes: int) -> None:
            self.up.take(moved_bytes)
            progress(moved_bytes)

        return super().send(local, key, counted)

    def chunks(self, key: str) -> Iterator[bytes]:
        for chunk in super().chunks(key):
            self.down.take(len(chunk))
            yield chunk


class Events:
    """The events file, and a display that writes to it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a")

    def watch(self) -> None:
        """Makes every display write down its stages and the steps of training."""
        started, finished, progress = LiveView.stage_started, LiveView.stage_finished, LiveView.progress

        def on_started(view: LiveView, name: str) -> None:
            self._note("started", name)
            started(view, name)

        def on_finished(view: LiveView, name: str, seconds: float, reused: bool) -> None:
            self._note("finished", name)
            finished(view, name, seconds, reused)

        def on_progress(view: LiveView, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
            if label.startswith("finetune ") and done == total:
                self._note("last step", label)
            progress(view, label, done, total, figures)

        LiveView.stage_started, LiveView.stage_finished, LiveView.progress = on_started, on_finished, on_progress

    def _note(self, event: str, name: str) -> None:
        line: dict[str, Any] = {"time_s": time.time(), "event": event, "name": name}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


if __name__ == "__main__":
    events, mb_per_s, *command = sys.argv[1:]
    LimitedBackend.up, LimitedBackend.down = Limit(float(mb_per_s) * 1e6), Limit(float(mb_per_s) * 1e6)
    store_module.DirectoryBackend = LimitedBackend
    Events(Path(events)).watch()
    sys.argv[1:] = command
    sys.exit(main())
