"""Settings that were added to a config later: what was made before them is found again."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from artifacts.identity import (
    Added,
    Difference,
    Identity,
    continued,
    differences,
    different_settings,
    settings_of,
    with_added,
)


class Before(BaseModel):
    rate: float = 0.5


class Now(BaseModel):
    rate: float = 0.5
    order: Annotated[str, Added(before="fixed")] = "shuffled"


class StageBefore(BaseModel):
    part: Before = Before()


class StageNow(BaseModel):
    part: Now = Now()
    limit: Annotated[int | None, Added(before=None)] = None
    optional: Now | None = None


def test_an_identity_is_the_one_before_where_the_stage_works_as_before() -> None:
    before = Identity.of("stage", 1, StageBefore()).config
    same = Identity.of("stage", 1, StageNow(part=Now(order="fixed"))).config
    assert same == {**before, "optional": None}


def test_an_identity_tells_of_an_added_setting_that_changes_the_work() -> None:
    assert settings_of(StageNow())["part"] == {"rate": 0.5, "order": "shuffled"}
    assert settings_of(StageNow(limit=3))["limit"] == 3


class Other(BaseModel):
    kind: Literal["other"] = "other"


class Grown(BaseModel):
    kind: Literal["grown"] = "grown"
    added: Annotated[int, Added(before=0)] = 1


class StageOfKinds(BaseModel):
    part: Annotated[Other | Grown, Field(discriminator="kind")] = Other()


def test_a_setting_of_one_kind_is_not_filled_in_for_another() -> None:
    assert with_added(StageOfKinds, {"part": {"kind": "other"}}) == {"part": {"kind": "other"}}
    assert with_added(StageOfKinds, {"part": {"kind": "grown"}}) == {"part": {"kind": "grown", "added": 0}}


def test_a_stored_config_has_the_values_of_before_for_what_was_added_later() -> None:
    stored = {"part": {"rate": 0.25}, "optional": {"rate": 1.0}}
    filled = with_added(StageNow, stored)
    assert filled == {
        "part": {"rate": 0.25, "order": "fixed"},
        "limit": None,
        "optional": {"rate": 1.0, "order": "fixed"},
    }
    assert stored == {"part": {"rate": 0.25}, "optional": {"rate": 1.0}}
    assert with_added(StageNow, {"optional": None})["optional"] is None


def test_work_begun_before_goes_on_as_it_began_unless_somebody_chose_otherwise() -> None:
    stored = {"part": {"rate": 0.5}}
    assert continued(StageNow(), stored) == StageNow(part=Now(order="fixed"))
    chosen = StageNow.model_validate({"part": {"order": "shuffled"}, "limit": 3})
    assert continued(chosen, stored) == chosen
    assert continued(StageNow(), {"part": {"rate": 0.5, "order": "shuffled"}, "limit": None}) == StageNow()


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
