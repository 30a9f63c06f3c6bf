"""Requests in flight follow the engine's counters, within bounds."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from stages.sampling.replicas.window import Window

COUNTERS = st.tuples(st.integers(0, 3), st.integers(0, 5), st.floats(0.0, 1.0))


def test_a_preemption_shrinks_by_a_quarter_of_what_is_in_flight_and_room_grows_by_one() -> None:
    window = Window(limit=16)
    for _ in range(12):
        assert window.enter()
    window.observe(preemptions=1, waiting=30, kv_cache_use=1.0)
    assert window.limit == 16, "of an earlier call to the same engine"
    window.observe(preemptions=2, waiting=30, kv_cache_use=1.0)
    assert window.limit == 9
    window.observe(preemptions=2, waiting=3, kv_cache_use=0.2)
    assert window.limit == 9
    window.observe(preemptions=2, waiting=0, kv_cache_use=0.2)
    assert window.limit == 10


@given(st.integers(1, 64), st.lists(COUNTERS, max_size=60))
def test_the_limit_stays_between_one_and_the_first(limit: int, seen: list[tuple[int, int, float]]) -> None:
    window = Window(limit)
    preemptions = 0
    for more, waiting, use in seen:
        preemptions += more
        window.observe(preemptions, waiting, use)
        assert 1 <= window.limit <= limit


def test_no_more_than_the_limit_are_in_flight_and_closing_wakes_the_rest() -> None:
    window = Window(limit=2)
    inside: list[int] = []
    turned_away = threading.Event()

    def visit() -> None:
        if window.enter():
            inside.append(window.active)
        else:
            turned_away.set()

    threads = [threading.Thread(target=visit) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(inside) < 2:
        pass
    assert not turned_away.wait(0.1)
    window.close()
    for thread in threads:
        thread.join(120.0)
    assert turned_away.is_set()
    assert max(inside) <= 2
