"""Stages that a command names: those that the run does not have are refused before anything is stored."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.config.recipes import load_recipe
from flows.opening import RunRequest, opened
from flows.session.frozen import freeze_recipe


@pytest.fixture
def begun(request_of_mine: Callable[..., RunRequest]) -> RunRequest:
    """Asks for a run that was killed before it published anything."""
    request = request_of_mine()
    freeze_recipe(Store.open(request.store), RunLayout(request.run), load_recipe("answers_only"))
    return request


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"refresh": ["grade", "value"]}, r"^refresh: 'value'; expected a stage of this run; its recipe has"),
        ({"refresh": ["teach@1"]}, r"^refresh: 'teach@1'; expected a stage of this run"),
        ({"refresh": ["grade@99"]}, r"^refresh grade@99: iteration 99 has published none"),
        ({"stop_after": "value@1"}, r"^stop_after: 'value@1'; expected a stage of this run"),
        ({"stop_after": "sample@0"}, r"^stop_after: 'sample@0'; expected evaluate or promote, the only stages before "),
        ({"stop_after": "sample@99"}, r"^stop_after: 'sample@99'; expected an iteration up to \d+, the last one"),
    ],
)
def test_a_stage_that_the_run_does_not_have_is_refused(begun: RunRequest, asked: dict[str, Any], message: str) -> None:
    before = Store.open(begun.store).list()
    with pytest.raises(BadInputError, match=message), opened(begun.model_copy(update=asked)):
        pass
    assert Store.open(begun.store).list() == before


def test_the_command_that_began_a_run_continues_it_whatever_it_names(begun: RunRequest) -> None:
    request = begun.model_copy(update={"refresh": ["grade", "grade@0002"], "stop_after": "sample@2"})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), opened(request) as run:
            assert [one.names for one in run.refresh.requests] == [("grade", "grade@2")]
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["rate@1", "pretrain@1", "sft@1", "distil@1"])
def test_a_stage_before_the_first_iteration_has_no_number(name: str) -> None:
    with pytest.raises(ValidationError, match="refresh"):
        RunRequest(refresh=[name])
