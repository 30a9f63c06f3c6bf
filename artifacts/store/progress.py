"""Progress of large uploads and downloads, in megabytes."""

import threading
import time
from collections.abc import Callable, Mapping

from artifacts.store.store import Progress, StartProgress

ProgressReport = Callable[[str, int, int, Mapping[str, float]], None]

_MB = 1 << 20


def watched(label: str, report: ProgressReport) -> StartProgress:
    """Returns the function that `Attempt.folder` and `Artifact.local_folder` call when a transfer begins.

    Args:
        label: Name of the transfer on the progress display.
        report: Called with `(label, done, total, figures)` in megabytes, from any thread, each time the transfer has
            completed another megabyte.
    """

    def begin(total_bytes: int) -> Progress:
        lock, started, moved = threading.Lock(), time.perf_counter(), 0

        def moved_on(by_bytes: int) -> None:
            nonlocal moved
            with lock:
                shown, moved = moved // _MB, min(moved + by_bytes, total_bytes)  # a part may be sent twice
                done = moved // _MB
            if done > shown:
                seconds = time.perf_counter() - started
                report(f"{label}, MB", done, max(1, total_bytes // _MB), {"MB_per_s": done / max(seconds, 1e-3)})

        return moved_on

    return begin
