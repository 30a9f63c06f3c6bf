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
        report: Called from any thread with `(label, done, total, figures)` in megabytes, each time at least one more
            megabyte has been transferred.
    """

    def begin(total_bytes: int) -> Progress:
        lock, started, total_moved = threading.Lock(), time.perf_counter(), 0

        def count(moved_bytes: int) -> None:
            nonlocal total_moved
            with lock:
                reported = total_moved // _MB
                total_moved = min(total_moved + moved_bytes, total_bytes)  # a part may be sent twice
                done = total_moved // _MB
            if done > reported:
                seconds = time.perf_counter() - started
                report(f"{label}, MB", done, max(1, total_bytes // _MB), {"MB_per_s": done / max(seconds, 1e-3)})

        return count

    return begin
