"""Time without the sleep of this process, for limits on silence.

A machine that sleeps, or a signal that stops all of a run, holds the watched process and its watcher alike. The time
that passes meanwhile says nothing about the watched one, nor does a wall clock that is set forward or back.
"""

import time

LONGEST_GAP_S = 5.0
"""Longest time between two looks that counts; a longer one was spent asleep, and does not count at all."""


class AwakeClock:
    """Seconds for which this process was awake since the clock was made. Look at least every `LONGEST_GAP_S` seconds.

    Attributes:
        asleep_s: Seconds that were spent asleep.
    """

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._awake_s = self.asleep_s = 0.0

    def look(self) -> float:
        """Returns the seconds awake."""
        now = time.monotonic()
        gap_s = now - self._looked_at
        self._looked_at = now
        if gap_s > LONGEST_GAP_S:
            self.asleep_s += gap_s
        else:
            self._awake_s += gap_s
        return self._awake_s


class LastProgress:
    """The seconds awake since something changed, such as counters or the times of files."""

    def __init__(self) -> None:
        self._clock, self._seen = AwakeClock(), None

    def observe(self, seen: object) -> None:
        """Begins again if what is seen differs from the last time."""
        if seen != self._seen:
            self._seen = seen
            self.reset()

    def reset(self) -> None:
        """Begins again."""
        self._clock = AwakeClock()

    @property
    def age_s(self) -> float:
        """Seconds awake since the last change; look at least every `LONGEST_GAP_S` seconds."""
        return self._clock.look()
