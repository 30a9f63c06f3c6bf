"""Settings that were added to a config later: what was made before them is found again."""

from typing import Annotated

from pydantic import BaseModel

from artifacts.identity import Added, Identity, continued, settings_of, with_added


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
