"""Runs a training job on artifacts and publishes its results, for the stages that train."""

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress, Attempt
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref, TrainingState
from artifacts.store.store import Store
from stages.context import StageContext
from stages.models.shape import read_shape
from stages.models.tensors import check_weights
from stages.training.checkpointing.kept_steps import KeptSteps
from stages.training.job import EpochOrder, LossConfig, OptimizerConfig, TrainJob, ValueJob
from stages.training.rounding import lost_warning
from stages.training.trainable import EVERYTHING, TrainableConfig


@dataclass(frozen=True)
class Weights:
    """A checkpoint, the training state that was saved with it, and the reference model of the KL term."""

    checkpoint: Ref[Checkpoint]
    state: Ref[TrainingState] | None = None
    reference: Ref[Checkpoint] | None = None

    @property
    def reused(self) -> bool:
        """Whether the checkpoint was found in the store rather than made."""
        return self.checkpoint.reused


@dataclass(frozen=True)
class Target:
    """The addresses and the identity under which a training job publishes.

    Attributes:
        identity: Identity of everything that the job publishes.
        checkpoint: Address of the checkpoint.
        state: Address of the training state; None if none is published.
        inputs: Artifacts that the job reads, by role.
        reference: Address of the next averaged reference; None if none is published.
        publish_values: Publishes the values from the file that the job wrote, before the checkpoint. None if the job
            writes no values.
    """

    identity: Identity
    checkpoint: ArtifactAddress[Checkpoint]
    state: ArtifactAddress[TrainingState] | None
    inputs: Mapping[str, Ref[Any] | None]
    reference: ArtifactAddress[Checkpoint] | None = None
    publish_values: Callable[[Path], Ref[Any]] | None = None

    def published(self) -> Weights | None:
        """Returns the weights if they are already published. The checkpoint is published last, so it decides."""
        checkpoint = self.checkpoint.find(self.identity)
        if checkpoint is None:
            return None
        return Weights(
            checkpoint,
            self.state.find(self.identity) if self.state else None,
            self.reference.find(self.identity) if self.reference else None,
        )


@dataclass(frozen=True)
class JobSettings:
    """How a training job trains on its batch.

    Attributes:
        learning_rates: One per optimizer step of all epochs.
        epochs: Passes over the batch.
        loss: Settings of the loss.
        optimizer: Settings of AdamW.
        trainable: Selection of the parameters that learn.
        reference: Model from which the divergence is measured; None if it is not measured.
        reference_decay: Weight of the old reference in the next averaged one.
        epoch_order: Mini-batches of the passes after the first.
        epoch_seed: Seed of the order of those passes.
        value: Settings of a value model; None for a policy.
    """

    learning_rates: Sequence[float]
    epochs: int
    loss: LossConfig
    optimizer: OptimizerConfig
    trainable: TrainableConfig = EVERYTHING
    reference: Ref[Checkpoint] | None = None
    reference_decay: float = 1.0
    epoch_order: EpochOrder = "same"
    epoch_seed: int = 0
    value: ValueJob | None = None


def train_and_publish(
    weights: Weights, batch_file: Path, job_settings: JobSettings, target: Target, ctx: StageContext, *, label: str
) -> Weights:
    """Runs one job on the worker group and publishes training state, next averaged reference and checkpoint.

    The checkpoint is published last, so its presence shows that the others are there.

    Args:
        weights: Weights to start from.
        batch_file: Packed batch (safetensors).
        job_settings: How the job trains on the batch.
        target: Where the results are published.
        ctx: The context of the stage.
        label: Name of the job in progress reports and logs.

    Raises:
        BadInputError: The tensors of the checkpoint or the reference are not those of its config.json.
        TransientError: The trainer died or hung.
        DeerstalkerError: The trainer ran out of memory, or cannot train this checkpoint.
    """
    for ref in (weights.checkpoint, job_settings.reference):
        if ref is not None:
            check_weights(ctx.local_folder(ref))
    worker_group = ctx.worker_group
    checkpoint_attempt = target.checkpoint.attempt(target.identity)
    state_attempt = target.state.attempt(target.identity) if target.state else None
    reference_attempt = target.reference.attempt(target.identity) if target.reference else None

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "step":
            figures = {key: event[key] for key in ("loss", "tokens_per_s") if event[key] is not None}
            ctx.progress(label, event["step"], event["of"], figures)
            if event["skipped"]:
                ctx.log.warning(
                    "%s: optimizer step %d of %d was skipped: its gradient is not finite",
                    label, event["step"], event["of"],
                )  # fmt: skip
        elif event["event"] == "step_checkpoint":
            kept.keep(event["step"], Path(event["folder"]))

    with KeptSteps(target.checkpoint, target.identity, ctx) as kept, ExitStack() as folders:
        resume_dir = kept.latest()
        state_dir, warm = None, False
        if weights.state is not None and resume_dir is None:
            warm = worker_group.holding == _label(weights.state, job_settings)
            state_dir = None if warm else ctx.local_folder(weights.state)

        def folder(attempt: Attempt[Any] | None) -> Path | None:
            return folders.enter_context(ctx.folder(attempt)) if attempt else None

        checkpoint_dir = ctx.local_folder(weights.checkpoint)
        values_file = ctx.scratch / f"values-{uuid.uuid4().hex[:8]}.safetensors" if target.publish_values else None
        job = TrainJob(
            checkpoint_dir=checkpoint_dir,
            state_dir=state_dir,
            warm=warm,
            resume_dir=resume_dir,
            step_checkpoints_dir=kept.inbox,
            batch_file=batch_file,
            learning_rates=list(job_settings.learning_rates),
            epochs=job_settings.epochs,
            epoch_order=job_settings.epoch_order,
            epoch_seed=job_settings.epoch_seed,
            reference_dir=ctx.local_folder(job_settings.reference) if job_settings.reference else None,
            reference_decay=job_settings.reference_decay,
            out_reference_dir=folder(reference_attempt),
            value=job_settings.value,
            out_values_file=values_file,
            loss=job_settings.loss,
            optimizer=job_settings.optimizer,
            trainable=job_settings.trainable,
            hardware=ctx.profile.trainer.on_this_machine(read_shape(checkpoint_dir).embed_dim),
            out_checkpoint_dir=folders.enter_context(ctx.folder(checkpoint_attempt)),
            out_state_dir=folder(state_attempt),
            events_file=ctx.scratch / f"events-{uuid.uuid4().hex[:8]}.jsonl",
        )
        result = worker_group.run(job, on_event)
    state = state_attempt.publish({}, **target.inputs) if state_attempt else None
    if state is not None and not state.reused:
        # A reused state was published by an interrupted attempt, and its numbers are not those in memory.
        worker_group.remember(_label(state, job_settings))
    values = None
    if target.publish_values and values_file:
        values = target.publish_values(values_file)
        values_file.unlink()
    reference = reference_attempt.publish({}, **target.inputs) if reference_attempt else None
    facts = {
        "steps": [step.model_dump() for step in result.steps],
        "totals": result.totals.model_dump(),
        "compute_dtype": job.hardware.compute_dtype,
    }
    checkpoint = checkpoint_attempt.publish(facts, **target.inputs, state=state, values=values)
    kept.discard()
    return Weights(checkpoint, state, reference)


def warn_of_rounding(trained: Weights, job_settings: JobSettings, setting: str, ctx: StageContext) -> None:
    """Logs a warning if rounding to bf16 lost most of what a job trained.

    Args:
        trained: What the job published.
        job_settings: How it was trained.
        setting: Name of the learning rate in the recipe.
        ctx: The context of the stage.
    """
    lost: float | None = Artifact.open(ctx.store, trained.checkpoint).manifest.facts["totals"]["movement_lost"]
    if lost is None:
        return
    kept, lora = trained.state is not None, job_settings.trainable.parameters == "lora"
    if warning := lost_warning(lost, setting, max(job_settings.learning_rates), kept=kept, lora=lora):
        ctx.log.warning("%s", warning)


def _label(state: Ref[TrainingState], job_settings: JobSettings) -> str:
    """Returns the label of a state in the workers' memory: its digest, and the precision of the job that left it."""
    return f"{state.digest} {job_settings.optimizer.master_dtype}"


def state_beside(checkpoint: Ref[Checkpoint], store: Store) -> Ref[TrainingState] | None:
    """Returns the training state that was saved with a checkpoint, or None if there is none."""
    saved = Artifact.open(store, checkpoint).manifest.inputs.get("state")
    return Ref(**saved) if saved else None


def carry_over(weights: Weights, target: Target, ctx: StageContext) -> Weights:
    """Publishes the weights unchanged, for an iteration that is frozen or has no training signal."""
    state = None
    if target.state is not None and weights.state is not None:
        state = _copy(weights.state, target.state.attempt(target.identity), target.inputs, ctx)
    reference = None
    if target.reference is not None and weights.reference is not None:
        reference = _copy(weights.reference, target.reference.attempt(target.identity), target.inputs, ctx)
    inputs = {**target.inputs, "state": state}
    checkpoint = _copy(weights.checkpoint, target.checkpoint.attempt(target.identity), inputs, ctx)
    return Weights(checkpoint, state, reference)


def _copy(
    source: Ref[Any], attempt: Attempt[Any], inputs: Mapping[str, Ref[Any] | None], ctx: StageContext
) -> Ref[Any]:
    with ctx.folder(attempt) as folder:
        shutil.copytree(ctx.local_folder(source), folder, dirs_exist_ok=True)
    return attempt.publish({"steps": [], "unchanged": True}, **inputs)
