"""The events file of a job: JSON lines that the workers append and the owner of the worker group reads."""

import json
import os
import time
from pathlib import Path
from typing import Any, Self


class EventWriter:
    """Appends events to a job's file. Each line is written whole, so that several processes may share the file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def send(self, event: str, /, **fields: Any) -> None:
        """Writes one line and flushes it."""
        self._file.write(json.dumps({"event": event, "time_s": time.time(), **fields}) + "\n")
        self._file.flush()


class EventReader:
    """Reads the events that are appended to a job's file after the reader was opened."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._file = path.open(encoding="utf-8")
        self._file.seek(0, os.SEEK_END)
        self._partial = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def new(self) -> list[dict[str, Any]]:
        """Returns the events since the last call; an incomplete last line waits for the next call."""
        *lines, self._partial = (self._partial + self._file.read()).split("\n")
        return [json.loads(line) for line in lines]
