"""Config models: every number is finite and bounded, in all settings that a person can write."""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field, ValidationError

from artifacts.config import LARGEST_FLOAT, LARGEST_INT, LONGEST_TEXT, Config
from artifacts.documents.suggestions import models_of
from flows.backfill import BackfillRequest
from flows.compare.comparison import CompareRequest
from flows.config.recipe import Recipe
from flows.doctor.hardware import Hardware
from flows.evaluation import EvaluationRequest
from flows.iterate import IterateRequest
from flows.opening import RunRequest
from flows.orchestration.installation import Installation
from flows.puzzle_set import PuzzleSetRequest
from flows.upkeep.retention import Retention
from stages.context import Profile
from stages.draw import DrawConfig
from stages.environments.reasoning_gym.config import ReasoningGymConfig

ROOTS: tuple[type[BaseModel], ...] = (
    Recipe, Profile, Hardware, Installation, Retention, RunRequest, IterateRequest, EvaluationRequest, BackfillRequest,
    CompareRequest, PuzzleSetRequest, DrawConfig,
)  # fmt: skip
DIGITS = 10**5000
NOT_NUMBERS = (math.inf, -math.inf, math.nan, float("1e400"), 1e300, -1e300, DIGITS, -DIGITS, True, False, "1.5", "1")


def configs(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A config and all that it may hold."""
    yield kind
    for field in kind.model_fields:
        for inner in models_of(kind, field):
            yield from configs(inner)


def leaves(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    parts = [part for part in get_args(annotation) if not isinstance(part, str)]
    return {annotation}.union(*(leaves(part) for part in parts)) if parts else {annotation}


# Without its optional package the config of reasoning-gym refuses everything, whatever the value.
ABSENT = set[type[BaseModel]]() if find_spec("reasoning_gym") else {ReasoningGymConfig}
KINDS = sorted({kind for root in ROOTS for kind in configs(root)} - ABSENT, key=lambda kind: kind.__name__)
FIELDS = [(kind, name) for kind in KINDS for name in kind.model_fields]
NUMBERS = [(kind, name) for kind, name in FIELDS if {int, float} & leaves(kind.model_fields[name].annotation)]
SWITCHES = [(kind, name) for kind, name in FIELDS if bool in leaves(kind.model_fields[name].annotation)]


def refuses(kind: type[BaseModel], name: str, value: Any) -> bool:
    """Whether this field is at fault."""
    try:
        kind.model_validate({name: value})
    except ValidationError as error:
        return any(problem["loc"][:1] == (name,) for problem in error.errors())
    return False


def test_the_walk_reaches_what_it_should() -> None:
    assert len(NUMBERS) > 100
    assert len(SWITCHES) >= 15
    assert {"FinetuneConfig", "ZebraConfig", "ResampleConfig", "LengthCosineConfig", "EngineHardware"} <= {
        kind.__name__ for kind in KINDS
    }
    assert all(issubclass(kind, Config) for kind in KINDS)


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: f"{type(value).__name__}-{value:.3}" if isinstance(
    value, (str, float)) else f"{type(value).__name__}-{value < 0}")  # fmt: skip
def test_no_setting_takes_for_a_number_what_is_none_or_has_no_end(value: Any) -> None:
    taken = [
        f"{kind.__name__}.{name}"
        for kind, name in NUMBERS
        if not (isinstance(value, bool) and (kind, name) in SWITCHES)
        if not refuses(kind, name, value) or not refuses(kind, name, [value, value])
    ]
    assert taken == []


@pytest.mark.parametrize("value", [0, 1, 1.0, "yes", "true"])
def test_no_switch_takes_a_number_or_a_word(value: Any) -> None:
    assert [f"{kind.__name__}.{name}" for kind, name in SWITCHES if not refuses(kind, name, value)] == []


class Part(Config):
    """Fields of every form, with bounds and without."""

    whole: int = 0
    real: float = 0.0
    positive: float | None = Field(default=None, gt=0)
    pair: tuple[float, float] = (0.0, 1.0)
    either: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    switch: bool = False
    text: str = ""
    type: int = 0  # a name that schemas use for themselves
    schema_: Annotated[dict[str, int], Field(alias="schema")] = Field(default_factory=dict)


class Whole(Config):
    """A config in a config."""

    part: Part = Field(default_factory=Part)


def test_what_is_a_number_is_taken() -> None:
    given = {"whole": -3, "real": 2, "positive": 1, "pair": [0, 0.5], "either": 4, "switch": True, "type": 5}
    part = Whole.model_validate({"part": {**given, "schema": {"a": 1}}}).part
    assert part.pair == (0.0, 0.5)
    assert (part.real, type(part.real), part.either, part.switch, part.type) == (2.0, float, 4, True, 5)
    assert Whole.model_validate_json(Whole(part=part).model_dump_json(by_alias=True)).part == part


@pytest.mark.parametrize(
    "wrong",
    [
        {"whole": LARGEST_INT + 1}, {"whole": -LARGEST_INT - 1}, {"whole": 1.0}, {"whole": True},
        {"real": LARGEST_FLOAT * 2}, {"real": math.nan}, {"positive": math.inf}, {"positive": True},
        {"pair": [0.0, math.inf]}, {"pair": [0.0, True]}, {"either": True}, {"either": 1.5}, {"switch": 1},
        {"text": "x" * (LONGEST_TEXT + 1)}, {"type": True}, {"schema": {"a": True}}, {"unknown": 1},
    ],
)  # fmt: skip
def test_what_is_none_is_not(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Whole.model_validate({"part": wrong})


def test_the_bounds_stand_in_the_schema_that_prefect_shows() -> None:
    properties = Part.model_json_schema()["properties"]
    assert properties["whole"]["maximum"] == LARGEST_INT
    assert properties["positive"]["anyOf"][0] == {"exclusiveMinimum": 0, "maximum": LARGEST_FLOAT, "type": "number"}
