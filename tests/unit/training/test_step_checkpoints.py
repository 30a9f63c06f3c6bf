"""A finetune that is killed goes on from its last step checkpoint, and ends with the same bits."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.errors import TransientError
from artifacts.refs import Batch, Ref
from stages.training.checkpointing.kept_steps import KeptSteps
from stages.training.launch import Weights
from tests.support.finetuning_machine import CONFIGS, HARDWARE, STEPS, Machine


@pytest.fixture
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Machine]]:
    kind, processes = request.param
    store = str(tmp_path / "store") if kind == "folder" else f"memory://{tmp_path.name}"
    hardware = HARDWARE.model_copy(update={"processes": processes})
    machines = [Machine(tmp_path, name, store, hardware) for name in ("first", "second")]
    yield machines
    for machine in machines:
        machine.ctx.close()


@pytest.fixture
def start(machines: list[Machine], tmp_path: Path) -> tuple[Weights, Ref[Batch]]:
    return machines[0].start(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("machines", "place"),
    [(("folder", 1), "loss"), pytest.param(("memory", 2), "token_reward", marks=pytest.mark.release)],
    indirect=["machines"],
)
def test_another_machine_goes_on_where_one_was_killed(
    machines: list[Machine], start: tuple[Weights, Ref[Batch]], place: str
) -> None:
    first, second = machines
    first.config = second.config = CONFIGS[place]
    undisturbed = first.finetune("undisturbed", *start)
    assert first.done == list(range(1, STEPS + 1))
    assert not first.kept("undisturbed"), "published: nothing is left to go on from"

    first.kill_at, first.done = 6, []
    with pytest.raises(TransientError):
        first.finetune("killed", *start)
    kept = [key for key in first.kept("killed") if key.endswith("/manifest.json")]
    assert len(kept) == 1, "the newest replaces the one before"
    step = int(kept[0].split("/step-")[1][:6])
    assert 1 <= step < STEPS

    _tear_a_later_one(second, kept[0])
    resumed = second.finetune("killed", *start)
    assert second.done == list(range(step + 1, STEPS + 1)), "what was done is not done again"
    assert resumed.checkpoint.digest == undisturbed.checkpoint.digest
    assert resumed.state is not None and undisturbed.state is not None
    assert resumed.state.digest == undisturbed.state.digest
    assert second.steps_of(resumed) == first.steps_of(undisturbed)
    lost = second.movement_lost(resumed)
    assert lost == first.movement_lost(undisturbed) and (lost is None) == (place == "token_reward"), "masters in bf16"
    assert not second.kept("killed")
    assert not second.log


def _tear_a_later_one(machine: Machine, manifest: str) -> None:
    """Leaves what a machine does that is lost while it stores a step checkpoint: files without a manifest."""
    folder, _, _ = manifest.rpartition("/step-")
    machine.store.write_bytes(f"{folder}/step-000012/attempt-0/steps.json", b"[]")


@pytest.mark.release
@pytest.mark.parametrize("machines", [("folder", 2)], indirect=True)
def test_a_damaged_step_checkpoint_is_left_out(machines: list[Machine], start: tuple[Weights, Ref[Batch]]) -> None:
    first, second = machines
    first.kill_at, first.done, second.done = 5, [], []
    with pytest.raises(TransientError):
        first.finetune("damaged", *start)
    (logprobs,) = [key for key in first.kept("damaged") if key.endswith("numbers.safetensors")]
    first.store.write_bytes(logprobs, b"not what it was")
    second.kill_at = 5
    with pytest.raises(TransientError):
        second.finetune("damaged", *start)
    assert second.done[0] == 1
    assert any("a step checkpoint is damaged" in line for line in second.log)
    first.kill_at, first.done = 0, []
    resumed = first.finetune("damaged", *start)
    assert first.done[0] > 1, "what replaced the damaged one is intact"
    assert resumed.checkpoint.digest == first.finetune("undisturbed", *start).checkpoint.digest


@pytest.mark.release
@pytest.mark.parametrize("machines", [("folder", 1)], indirect=True)
def test_a_step_checkpoint_that_another_run_removes_meanwhile_is_tried_again(
    machines: list[Machine], start: tuple[Weights, Ref[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs train one warm start: the one that is ahead removes the step checkpoint that the other begins with."""
    first, second = machines
    first.kill_at = 5
    with pytest.raises(TransientError):
        first.finetune("shared", *start)
    latest = KeptSteps.latest

    def removed_after_it_was_found(kept: KeptSteps) -> Path | None:
        found = latest(kept)
        for key in second.kept("shared"):
            second.store.delete(key)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(KeptSteps, "latest", removed_after_it_was_found)
        with pytest.raises(TransientError, match="removed by another run, which trains the same"):
            second.finetune("shared", *start)
    second.done = []
    assert second.finetune("shared", *start).state is not None
    assert second.done == list(range(1, STEPS + 1))
