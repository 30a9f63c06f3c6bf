"""Waiting for something that another process does."""

import time
from collections.abc import Callable


def wait_until(
    reached: Callable[[], object], limit_s: float, told: Callable[[], object] = lambda: "", poll_s: float = 0.1
) -> float:
    """Asks again and again until the answer is true, and returns the seconds that took.

    Args:
        reached: May raise where waiting on is in vain.
        told: What an error says of how things stand.

    Raises:
        AssertionError: Not reached in time.
    """
    started = time.monotonic()
    while not reached():
        assert time.monotonic() < started + limit_s, f"not reached in {limit_s:.0f} s: {told()}"
        time.sleep(poll_s)
    return time.monotonic() - started
