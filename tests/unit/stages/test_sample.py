"""Which puzzles an iteration takes."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.curriculum.order import stride


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
def test_a_pass_goes_through_every_puzzle_once(total: int, count: int, seed: int) -> None:
    train = pl.DataFrame({"prompt_id": [f"p{number}" for number in range(total)]})
    count = min(count, total)
    taken: list[str] = []
    for iteration in range(1, 2 * total + 1):
        chosen = stride(train, count, iteration, seed)["prompt_id"].to_list()
        assert len(chosen) == len(set(chosen)) <= count
        taken += chosen
    if total % count == 0:
        passes = [taken[start : start + total] for start in range(0, len(taken), total)]
        assert all(sorted(one) == sorted(train["prompt_id"]) for one in passes)
    assert set(taken) == set(train["prompt_id"])


def test_the_same_seed_gives_the_same_order_and_another_seed_another() -> None:
    train = pl.DataFrame({"prompt_id": [f"p{number}" for number in range(50)]})
    assert stride(train, 8, 3, 1).equals(stride(train, 8, 3, 1))
    assert not stride(train, 8, 3, 1).equals(stride(train, 8, 3, 2))
