"""A finetune that is killed goes on from its last step checkpoint, and ends with the same bits."""

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save

from artifacts.address import ArtifactAddress
from artifacts.errors import TransientError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Ref, TrainingState
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE
from stages.context import Profile, StageContext
from stages.finetune import FinetuneConfig, finetune
from stages.training.job import TrainHardware
from stages.training.launch import Weights
from tests.support.trainer_processes import workers
from tests.support.trees import save_model, tree_batch

HARDWARE = TrainHardware(threads=1, micro_batch_tokens=30, checkpoint_every_s=0.0)
LOSS = {"kl_coef": 0.1, "old_logprobs": "trainer", "importance_correction": "token_truncate"}
CONFIGS = {
    place: FinetuneConfig.model_validate(
        {
            "learning_rate": 0.01,
            "epochs": 4,
            "reference": "base",
            "loss": {**LOSS, "kl_place": place},
            "optimizer": {"master_dtype": masters},
        }
    )
    for place, masters in (("loss", "fp32"), ("token_reward", "bf16"))
}
"""Their passes after the first draw the mini-batches anew."""
STEPS = 12


class Machine:
    """A machine with a gang of its own, on the store that all machines share."""

    def __init__(self, folder: Path, name: str, store: str, processes: int) -> None:
        self.store = Store.open(store)
        self.done: list[int] = []
        self.kill_at = 0
        self.config = CONFIGS["loss"]
        self.log: list[str] = []
        logger = logging.getLogger(f"{__name__}.{name}")
        logger.addFilter(lambda record: not self.log.append(record.getMessage()))
        scratch, hardware = folder / name, HARDWARE.model_copy(update={"processes": processes})
        self.ctx = StageContext(self.store, scratch, Profile(trainer=hardware), self.progress, logger)

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        self.done.append(done)
        if done == self.kill_at:
            os.kill(workers(self.ctx.worker_group)[-1], signal.SIGKILL)

    def artifact(self, key: str, kind: type[Any], **files: bytes) -> Ref[Any]:
        attempt = ArtifactAddress(self.store, key, kind).attempt(Identity.of("made", 1, {"key": key}))
        for name, data in files.items():
            attempt.write_bytes(name, data)
        return attempt.publish()

    def finetune(self, run: str, weights: Weights, batch: Ref[Batch]) -> Weights:
        slots = {part: ArtifactAddress(self.store, f"{run}/{part}", Checkpoint) for part in ("checkpoint", "reference")}
        return finetune(
            self.ctx, self.config, weights, batch, iteration=1, out=slots["checkpoint"],
            state_out=ArtifactAddress(self.store, f"{run}/state", TrainingState), reference_out=slots["reference"],
        )  # fmt: skip

    def kept(self, run: str) -> list[str]:
        return [key for key in self.store.list(f"{run}/checkpoint") if "/progress-" in key]

    def steps_of(self, weights: Weights) -> list[dict[str, Any]]:
        steps = Artifact.open(self.store, weights.checkpoint).manifest.facts["steps"]
        return [{key: value for key, value in step.items() if key not in ("seconds", "tokens_per_s")} for step in steps]


@pytest.fixture
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Machine]]:
    kind, processes = request.param
    store = str(tmp_path / "store") if kind == "folder" else f"memory://{tmp_path.name}"
    machines = [Machine(tmp_path, name, store, processes) for name in ("first", "second")]
    yield machines
    for machine in machines:
        machine.ctx.close()


@pytest.fixture
def start(machines: list[Machine], tmp_path: Path) -> tuple[Weights, Ref[Batch]]:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    model = machines[0].artifact("model", Checkpoint, **files)
    # Two of three mini-batches have one row for two processes: one of these has none of its own.
    batch = machines[0].artifact("batch", Batch, **{BATCH_FILE: save(tree_batch(1, [2, 1, 3, 1], steps=3))})
    return Weights(model, reference=model), batch


@pytest.mark.parametrize(
    ("machines", "place"),
    [(("folder", 1), "loss"), pytest.param(("memory", 2), "token_reward", marks=pytest.mark.long)],
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
    assert not second.kept("killed")
    assert not second.log


def _tear_a_later_one(machine: Machine, manifest: str) -> None:
    """Leaves what a machine does that is lost while it stores a step checkpoint: files without a manifest."""
    folder, _, _ = manifest.rpartition("/step-")
    machine.store.write_bytes(f"{folder}/step-000012/attempt-0/steps.json", b"[]")


@pytest.mark.long
@pytest.mark.parametrize("machines", [("folder", 2)], indirect=True)
def test_a_damaged_step_checkpoint_is_left_out(machines: list[Machine], start: tuple[Weights, Ref[Batch]]) -> None:
    first, second = machines
    first.kill_at, first.done, second.done = 5, [], []
    with pytest.raises(TransientError):
        first.finetune("damaged", *start)
    (logprobs,) = [key for key in first.kept("damaged") if key.endswith("logprobs.safetensors")]
    first.store.write_bytes(logprobs, b"not what it was")
    resumed = second.finetune("damaged", *start)
    assert second.done == list(range(1, STEPS + 1))
    assert any("a step checkpoint is ignored" in line for line in second.log)
    first.kill_at = 0
    assert resumed.checkpoint.digest == first.finetune("undisturbed", *start).checkpoint.digest
