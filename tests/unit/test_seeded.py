"""Tables of benchmarks that were measured in several calls."""

import json
from pathlib import Path

from tests.support.seeded import joined, over_seeds


def test_a_table_of_several_calls_keeps_every_row_and_takes_the_newest(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps({"seeds": {"702": {"process": {"gain": 1.0}}, "99": {"process": {}}}, "bars": [1]}))
    second.write_text(json.dumps({"seeds": {"702": {"outcome": {"gain": 2.0}, "process": {"gain": 3.0}}}}))
    together = joined([str(first), str(second)], {"seeds": {701: {"process": {"gain": 4.0}}}, "transfer": {}})
    assert together == {
        "seeds": {
            "99": {"process": {}},
            "701": {"process": {"gain": 4.0}},
            "702": {"process": {"gain": 3.0}, "outcome": {"gain": 2.0}},
        },
        "transfer": {},
    }
    assert list(together["seeds"]) == ["99", "701", "702"]


def test_means_over_seeds_have_half_of_their_95_percent_interval() -> None:
    rows = [{"a": {"gain": 1.0}}, {"a": {"gain": 3.0}, "b": {"gain": 7.0}}]
    assert over_seeds(rows) == {"a": {"gain": "2 ± 13"}, "b": {"gain": "7"}}  # t of one degree: 12.706
