"""Which puzzles a curriculum takes: columns, filters, orders and pools, with numbers worked by hand."""

from collections import Counter
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from artifacts.errors import BadInputError
from artifacts.schemas import PASS_RATES, as_table, validated
from stages.curriculum.order import Ascending, Condition, Pools, Selection, Shuffled, eligible, stride, take
from stages.curriculum.pass_rates import column_values, rates, updated
from stages.sample import SampleConfig, eligible_puzzles


def puzzles(clues: list[int]) -> pl.DataFrame:
    """Puzzles p0, p1, ... with these numbers of clues; the prompt of p3 has 3 characters."""
    return pl.DataFrame(
        {
            "prompt_id": [f"p{number}" for number in range(len(clues))],
            "prompt": ["x" * number for number in range(len(clues))],
            "num_clues": clues,
            "difficulty": [f'{{"rooms": {number % 3}}}' for number in range(len(clues))],
        }
    )


def rated(values: dict[str, float], name: str = "start", **changes: Any) -> pl.DataFrame:
    """Pass rates of one model: accuracy by puzzle; 4 samples each."""
    rows = [
        {
            "prompt_id": prompt_id, "name": name, "iteration": 0, "weights_digest": "w", "samples": 4,
            "accuracy": accuracy, "exact": accuracy, "tokens": 10.0, "truncated": 0.0, **changes,
        }
        for prompt_id, accuracy in values.items()
    ]  # fmt: skip
    return validated(as_table(rows, PASS_RATES), PASS_RATES, "made")


def ids(frame: pl.DataFrame) -> list[str]:
    return frame["prompt_id"].to_list()


def test_a_rate_is_the_mean_over_the_samples_of_a_puzzle() -> None:
    graded = pl.DataFrame(
        {
            "prompt_id": ["a", "a", "a", "a", "b", "b"],
            "accuracy": [1.0, 0.5, 0.5, 0.0, 1.0, 1.0],
            "exact": [True, False, False, False, True, True],
            "truncated": [False, False, False, True, False, False],
            "tokens": [4, 6, 8, 10, 1, 3],
        }
    )
    table = validated(rates(graded, name="start", iteration=0, weights_digest="w"), PASS_RATES, "made")
    columns = ("prompt_id", "samples", "accuracy", "exact", "tokens", "truncated")
    assert table.select(columns).rows() == [("a", 4, 0.5, 0.25, 7.0, 0.25), ("b", 2, 1.0, 1.0, 2.0, 0.0)]


def test_a_newer_rate_replaces_that_of_the_same_puzzle_and_name_only() -> None:
    older = pl.concat([rated({"a": 0.25, "b": 0.5}, "run"), rated({"a": 0.0}, "7b")])
    pass_rates = validated(updated(older, rated({"b": 1.0, "c": 0.75}, "run", iteration=3)), PASS_RATES, "made")
    assert pass_rates.select("name", "prompt_id", "accuracy", "iteration").rows() == [
        ("7b", "a", 0.0, 0), ("run", "a", 0.25, 0), ("run", "b", 1.0, 3), ("run", "c", 0.75, 3),
    ]  # fmt: skip
    assert updated(None, older).equals(older)


def test_columns_are_sizes_or_rates() -> None:
    table, pass_rates = puzzles([5, 3, 4]), rated({"p0": 0.5, "p2": 1.0})
    assert column_values(table, pass_rates, "num_clues").to_list() == [5.0, 3.0, 4.0]
    assert column_values(table, None, "prompt_characters").to_list() == [0.0, 1.0, 2.0]
    assert column_values(table, None, "difficulty:rooms").to_list() == [0.0, 1.0, 2.0]
    assert column_values(table, pass_rates, "accuracy:start").to_list() == [0.5, None, 1.0]
    assert column_values(table, pass_rates, "accuracy:run").to_list() == [None, None, None]
    assert column_values(table, pass_rates, "tokens:start").to_list() == [10.0, None, 10.0]


@pytest.mark.parametrize(
    ("column", "message"),
    [("exact:7b", "'exact:7b': the puzzles do not have it; expected exact:start"), ("difficulty:motives", "ty:rooms")],
)
def test_a_column_that_is_missing_is_named_in_one_line(column: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message) as raised:
        column_values(puzzles([1]), rated({"p0": 0.5}), column)
    assert "\n" not in str(raised.value)


def test_a_filter_takes_what_one_of_its_selections_takes() -> None:
    """The second level of difficulty-aware RL: (small 0 and large above 0), or both in (0, 1)."""
    small = rated({"p0": 0.0, "p1": 0.0, "p2": 0.5, "p3": 0.5, "p4": 1.0}, "small")
    large = rated({"p0": 0.0, "p1": 1.0, "p2": 0.5, "p3": 1.0, "p4": 0.5}, "large")
    where = (
        Selection(all=(Condition(column="exact:small", at_most=0.0), Condition(column="exact:large", above=0.0))),
        Selection(all=tuple(Condition(column=f"exact:{name}", above=0.0, below=1.0) for name in ("small", "large"))),
    )
    table = puzzles([1] * 5)
    assert ids(eligible(table, pl.concat([small, large]), where, seed=0)) == ["p1", "p2"]
    assert ids(eligible(table, None, (), seed=0)) == ids(table)


def test_a_puzzle_without_a_rate_is_tried() -> None:
    where = (Selection(all=(Condition(column="accuracy:run", above=0.0, below=1.0),)),)
    pass_rates = rated({"p0": 0.0, "p1": 0.5}, "run")
    assert ids(eligible(puzzles([1, 1, 1]), pass_rates, where, seed=0)) == ["p1", "p2"]


def test_a_share_takes_the_same_puzzles_every_time() -> None:
    table = puzzles([1] * 400)
    where = (Selection(all=(Condition(column="num_clues", at_least=1.0),), share=0.5),)
    taken = ids(eligible(table, None, where, seed=7))
    assert taken == ids(eligible(table, None, where, seed=7)) != ids(eligible(table, None, where, seed=8))
    assert 160 <= len(taken) <= 240  # four standard deviations of 400 fair coins


def test_ascending_goes_from_easy_to_hard_in_every_pass() -> None:
    table, order = puzzles([5, 3, 9, 3, 7, 1]), Ascending(column="num_clues")
    clues = [take(table, None, order, 2, position, 0)["num_clues"].to_list() for position in range(1, 7)]
    assert clues == [[1, 3], [3, 5], [7, 9]] * 2


def test_pools_draw_by_weight_without_repeats() -> None:
    """Of 30 easy, 30 middling and 30 hard puzzles with weights 0.01, 1 and 0.01, the middling ones come first."""
    table = puzzles([1] * 90)
    pass_rates = rated({f"p{number}": (0.1, 0.5, 0.9)[number % 3] for number in range(90)}, "run")
    order = Pools(bounds=(0.25, 0.75, 1.0), weights=(0.01, 1.0, 0.01))
    drawn = [ids(take(table, pass_rates, order, 10, position, 3)) for position in range(1, 41)]
    assert drawn == [ids(take(table, pass_rates, order, 10, position, 3)) for position in range(1, 41)]
    assert all(len(set(names)) == 10 for names in drawn)
    assert len({tuple(names) for names in drawn}) == 40
    pools = Counter(int(name[1:]) % 3 for names in drawn for name in names)
    assert pools[1] > 340
    assert pools[0] + pools[2] > 0


def test_the_weight_of_a_pool() -> None:
    order = Pools(unseen_weight=3.0)
    weights = [order.weight(rate) for rate in (0.0, 0.25, 0.26, 0.75, 0.76, 1.0, None)]
    assert weights == [0.2, 0.2, 1.0, 1.0, 0.2, 0.2, 3.0]


def test_the_chance_of_a_draw_is_proportional_to_the_weight() -> None:
    """With weights 3 and 1, the first of two puzzles is drawn in three of four iterations."""
    table, pass_rates = puzzles([1, 1]), rated({"p0": 0.5, "p1": 1.0}, "run")
    order = Pools(bounds=(0.75, 1.0), weights=(3.0, 1.0))
    first = sum(ids(take(table, pass_rates, order, 1, position, 0)) == ["p0"] for position in range(1, 2001))
    assert 1422 <= first <= 1578  # 1500, four standard deviations


def test_the_order_of_before_is_unchanged() -> None:
    table = puzzles(list(range(50)))
    for position in (1, 4, 9):
        assert take(table, None, Shuffled(), 8, position, 1).equals(stride(table, 8, position, 1))
    assert ids(stride(table, 5, 1, 0)) == ["p10", "p17", "p27", "p34", "p23"]  # as the version before orders drew them


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": {"by": "ascending", "column": "accuracy:run"}}, "changes while the run measures it"),
        ({"order": {"by": "ascending", "column": "clues"}}, "no such column 'clues': expected num_clues"),
        ({"order": {"by": "ascending"}}, "Field required"),
        ({"order": {"by": "pools", "bounds": [0.5, 0.2], "weights": [1.0, 1.0]}}, "bounds must ascend"),
        ({"order": {"by": "pools", "weights": [1.0]}}, "3 bounds, but 1 weights"),
        ({"where": [{"all": [{"column": "num_clues"}]}]}, "needs one of above"),
    ],
)
def test_a_wrong_order_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SampleConfig.model_validate(settings)


def test_a_filter_that_leaves_too_few_puzzles_is_refused_in_one_line() -> None:
    where = (Selection(all=(Condition(column="num_clues", at_most=2.0),)),)
    config = SampleConfig(puzzles_per_iteration=3, where=where)
    with pytest.raises(BadInputError, match="takes 2 of 4 train puzzles; expected at least 3") as raised:
        eligible_puzzles(puzzles([1, 2, 3, 4]), None, config, remedy="set wider bounds")
    assert "\n" not in str(raised.value)
