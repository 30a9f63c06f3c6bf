"""Records what each thread spends its time on; manifests store the record of the thread that publishes the artifact.

Work that another thread does during a stage is therefore not counted as work of the stage.
"""

import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from itertools import takewhile
from typing import Literal

Activity = Literal["engine", "trainer", "loading", "saving", "store"]
"""What a thread, or the process that it waits for, does in a span of time.

* `engine`, `trainer`: it samples, takes optimizer steps or computes log-probabilities.
* `loading`: engine or trainer starts, reads weights, or is in use by another stage.
* `saving`: the trainer writes its results, into the store if that is a folder.
* `store`: the thread waits for the store: reads, writes, checks of files.
"""
Spans = dict[Activity, list[tuple[float, float]]]
"""Begin and end of each span by activity, in order."""

_MOST_SPANS = 10_000
_SHORTEST_GAP_S = 0.05
_GAPS = 500
"""A gap between two spans of an activity is recorded if it is longer than 1 / `_GAPS` of the whole time."""


class _Record(threading.local):
    def __init__(self) -> None:
        self.spans = deque[tuple[Activity, float, float]](maxlen=_MOST_SPANS)


_record = _Record()


@contextmanager
def doing(activity: Activity) -> Generator[None]:
    """Records the duration of the block, or of each call of a decorated function, even if it fails."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        note(activity, begin, time.perf_counter())


def note(activity: Activity, begin: float, end: float) -> None:
    """Records a span of time of this thread; begin and end are values of `time.perf_counter`."""
    _record.spans.append((activity, begin, end))


def spans_since(begin: float) -> Spans:
    """Returns the spans of this thread since `begin`, in seconds after it; spans with a short gap are joined.

    Args:
        begin: A value of `time.perf_counter`.
    """
    gap_s = max(_SHORTEST_GAP_S, (time.perf_counter() - begin) / _GAPS)
    found: Spans = {}
    recent = takewhile(lambda span: span[2] > begin, reversed(_record.spans))  # spans are noted as they end
    for activity, first, last in sorted(recent, key=lambda span: span[1]):
        start, end, spans = max(0.0, first - begin), last - begin, found.setdefault(activity, [])
        if spans and start - spans[-1][1] <= gap_s:
            start, end = spans[-1][0], max(end, spans.pop()[1])
        spans.append((round(start, 3), round(end, 3)))
    return found
