"""Stages that a command names: those that the run does not have are refused before anything is stored."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.local import full_disk
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.store import Store
from flows.backfill import BackfillRequest, backfill
from flows.benchmark import BenchmarkRequest, benchmark
from flows.compare.comparison import CompareRequest, compare
from flows.config.recipes import load_recipe
from flows.evaluation import EvaluationRequest, _key, evaluate_checkpoint
from flows.merging import MergeRequest, merge_checkpoints
from flows.opening import RunRequest, opened
from flows.puzzle_set import PuzzleSetRequest, make_puzzles
from flows.session.frozen import freeze_recipe
from flows.session.saving import LastStageDone
from flows.train import train
from stages.evaluate import EvaluateConfig
from stages.models.merging.config import MergedModel
from tests.support.made_run import make_run


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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"profile_overrides": ["engine.takes_turns=true"]}, "engine.takes_turns"), ({"role": "trainer"}, "refresh: ")],
)
def test_a_command_that_is_refused_requests_nothing(
    request_of_mine: Callable[..., RunRequest], settings: dict[str, Any], expected: str
) -> None:
    """The next command would carry the request out."""
    request = request_of_mine("iterate_ahead=1").model_copy(update={"refresh": ["grade"], **settings})
    store, layout = Store.open(request.store), RunLayout(request.run)
    freeze_recipe(store, layout, load_recipe(request.recipe, request.overrides))
    with pytest.raises(BadInputError, match=f"^{expected}"), opened(request):
        pass
    assert not store.list(layout.refresh_requests)


def test_the_command_that_began_a_run_continues_it_whatever_it_names(begun: RunRequest) -> None:
    request = begun.model_copy(update={"refresh": ["grade", "grade@0002"], "stop_after": "sample@2"})
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), opened(request) as run:
            assert [one.names for one in run.refresh.requests] == [("grade", "grade@2")]
            raise KeyboardInterrupt


def test_a_run_that_was_to_stop_has_not_failed_where_a_disk_is_full(
    begun: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of another folder may be full by now; all stages have ended."""
    monkeypatch.setattr(full_disk, "_refusal", lambda _: errno.ENOSPC)
    with opened(begun):
        raise LastStageDone("sample")


@pytest.mark.parametrize("name", ["rate@1", "pretrain@1", "sft@1", "distil@1"])
def test_a_stage_before_the_first_iteration_has_no_number(name: str) -> None:
    with pytest.raises(ValidationError, match="refresh"):
        RunRequest(refresh=[name])


MERGED = MergedModel(models=["a", "b"], method="average")


@pytest.mark.parametrize(
    ("flow", "request_of", "asked"),
    [
        (train, RunRequest, {"run": "new"}),
        (evaluate_checkpoint, EvaluationRequest, {"checkpoint": "made", "suite": "panel"}),
        (backfill, BackfillRequest, {"runs": ["made"], "suite": "panel"}),
        (benchmark, BenchmarkRequest, {"models": "temporal_clue_2025", "suite": "panel"}),
        (compare, CompareRequest, {"run": "made", "recipes": ["own"]}),
        (merge_checkpoints, MergeRequest, {"model": MERGED}),
        (make_puzzles, PuzzleSetRequest, {}),
    ],
)
def test_every_flow_changes_its_profile(
    flow: Any, request_of: type[Config], asked: dict[str, Any], tmp_path: Path
) -> None:
    make_run(Store.open(str(tmp_path)))
    changed = {**asked, "store": str(tmp_path), "profile_overrides": ["engine.dtype=int8"]}
    with pytest.raises(BadInputError, match=r"engine.dtype: Input should be 'auto'"):
        flow.fn(request_of.model_validate(changed))


def test_another_revision_of_the_measurement_has_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade, the same command would find a report of another identity, and be refused for ever."""
    arguments = EvaluateConfig(), "test", Ref[Checkpoint]("Checkpoint", "c", "1"), Ref[Puzzles]("Puzzles", "p", "2")
    before = _key(*arguments)
    monkeypatch.setattr("flows.evaluation.REVISION", 99)
    assert _key(*arguments) != before
