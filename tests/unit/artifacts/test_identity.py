"""Differences between two tables of settings."""

from artifacts.identity import Difference, differences, different_settings


def test_different_settings_name_the_section_and_leave_out_a_side_that_has_none() -> None:
    a = {"loss": {"clip": 0.2, "kind": "gspo"}, "seed": 1, "stop": {"at": 3}, "only_a": None}
    b = {"loss": {"clip": 0.3, "kind": "gspo"}, "seed": 1, "stop": None, "only_b": {"x": 1}}
    assert different_settings(a, b) == [
        Difference("loss.clip", {"a": 0.2, "b": 0.3}),
        Difference("stop", {"a": {"at": 3}, "b": None}),
        Difference("only_a", {"a": None}),
        Difference("only_b", {"b": {"x": 1}}),
    ]


def test_differences_are_sorted_lines_in_which_a_missing_setting_is_none() -> None:
    stored = {"seed": 1, "loss": {"clip": 0.2}, "gone": None}
    assert differences(stored, {"seed": 2, "loss": {"clip": 0.3}, "new": "x"}) == [
        "loss.clip: 0.2 -> 0.3",
        "new: None -> 'x'",
        "seed: 1 -> 2",
    ]
