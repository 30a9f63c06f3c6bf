"""Machines that finetune a tiny model on one store, and are killed on purpose at some step."""

import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, OptimizerState, Ref
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE
from stages.context import Profile, StageContext
from stages.finetune import FinetuneConfig, finetune
from stages.training.launch import Weights
from stages.training.worker_group.hardware import TrainHardware
from tests.support.trainer_processes import workers
from tests.support.trees import save_model, tree_batch

HARDWARE = TrainHardware(threads=1, micro_batch_tokens=30, checkpoint_every_s=0.0)
LOSS = {"kl_coef": 0.1, "old_logprobs": "trainer", "importance_correction": "token_truncate"}
CONFIGS = {
    place: FinetuneConfig.model_validate(
        {
            "learning_rate": 0.01,
            "epochs": 10,
            "reference": "base",
            "loss": {**LOSS, "kl_place": place},
            "optimizer": {"master_dtype": masters},
        }
    )
    for place, masters in (("loss", "fp32"), ("token_reward", "bf16"))
}
"""Their passes after the first draw the mini-batches again."""
STEPS = 30
"""So many that a job which is killed at its sixth is not over before its owner has seen that one."""


class Machine:
    """A machine with a worker group of its own, on the store that all machines share.

    Attributes:
        kill_at: Step after which it kills a worker of its group on node `node`; 0 for none.
    """

    def __init__(self, folder: Path, name: str, store: str, hardware: TrainHardware, node: int = 0) -> None:
        self.store = Store.open(store)
        self.done: list[int] = []
        self.kill_at, self.node = 0, node
        self.config = CONFIGS["loss"]
        self.log: list[str] = []
        logger = logging.getLogger(f"{__name__}.{name}")
        logger.addFilter(lambda record: not self.log.append(record.getMessage()))
        self.ctx = StageContext(self.store, folder / name, Profile(trainer=hardware), self.progress, logger)

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        self.done.append(done)
        if done == self.kill_at:
            os.kill(workers(self.ctx.worker_group, self.node)[-1], signal.SIGKILL)

    def artifact(self, key: str, kind: type[Any], facts: Mapping[str, Any], **files: bytes) -> Ref[Any]:
        attempt = ArtifactAddress(self.store, key, kind).attempt(Identity.of("made", 1, {"key": key}))
        for name, data in files.items():
            attempt.write_bytes(name, data)
        return attempt.publish(facts)

    def finetune(self, run: str, weights: Weights, batch: Ref[Batch]) -> Weights:
        addresses = {
            part: ArtifactAddress(self.store, f"{run}/{part}", Checkpoint) for part in ("checkpoint", "reference")
        }
        return finetune(
            self.ctx, self.config, weights, batch, iteration=1, out=addresses["checkpoint"],
            state_out=ArtifactAddress(self.store, f"{run}/state", OptimizerState), reference_out=addresses["reference"],
        ).saved(self.ctx)  # fmt: skip

    def kept(self, run: str) -> list[str]:
        return [key for key in self.store.list(f"{run}/checkpoint") if "/progress-" in key]

    def steps_of(self, weights: Weights) -> list[dict[str, Any]]:
        steps = Artifact.open(self.store, weights.checkpoint).manifest.facts["steps"]
        return [{key: value for key, value in step.items() if key not in ("seconds", "tokens_per_s")} for step in steps]

    def movement_lost(self, weights: Weights) -> float | None:
        return Artifact.open(self.store, weights.checkpoint).manifest.facts["totals"]["movement_lost"]

    def start(self, folder: Path) -> tuple[Weights, Ref[Batch]]:
        """Stores a model and a batch to begin with; writes the model below `folder`."""
        save_model(folder / "model", "Qwen2", tie_word_embeddings=True)
        files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
        model = self.artifact("model", Checkpoint, {}, **files)
        # Two of three mini-batches have one row for two processes, so one process has no row of its own.
        packed = {BATCH_FILE: save(tree_batch(1, [2, 1, 3, 1], steps=3))}
        batch = self.artifact("batch", Batch, {"minibatches": 3}, **packed)
        return Weights(model, reference=model), batch
