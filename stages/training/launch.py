"""Runs a training job on artifacts and publishes its results, for the stages that train."""

import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from artifacts.activity import doing
from artifacts.address import ArtifactAddress, Attempt
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import state_key
from artifacts.manifest import content_digest
from artifacts.reading import Artifact, is_published
from artifacts.refs import Checkpoint, Ref, TrainingState
from artifacts.store.progress import watched
from artifacts.store.store import Store
from stages.context import StageContext
from stages.models.shape import read_shape
from stages.models.tensors import check_weights
from stages.training.checkpointing.kept_steps import KeptSteps
from stages.training.job import EpochOrder, LossConfig, OptimizerConfig, TrainJob, ValueJob
from stages.training.rounding import lost_warning
from stages.training.trainable import EVERYTHING, TrainableConfig
from stages.training.worker_group.group import StateWrite, WorkerGroup

STATE_FOLLOWS = "state_follows"
"""The fact of a checkpoint whose training state is published beside it, later than the checkpoint."""


@dataclass(frozen=True)
class Weights:
    """A checkpoint, its training state, and the reference model of the KL term.

    Attributes:
        checkpoint: The checkpoint.
        state: The training state that was saved with it; None if there is none, or if it is not published yet.
        reference: The reference model; None without one.
        saving: Publishes the training state, which the workers still write; None if there is nothing to publish.
    """

    checkpoint: Ref[Checkpoint]
    state: Ref[TrainingState] | None = None
    reference: Ref[Checkpoint] | None = None
    saving: "SavingState | None" = field(default=None, compare=False, repr=False)

    @property
    def reused(self) -> bool:
        """Whether the checkpoint was found in the store rather than made."""
        return self.checkpoint.reused

    def saved(self, ctx: StageContext) -> "Weights":
        """Returns the weights with their training state, after it is published. For callers without a flow.

        Raises:
            TransientError: The trainer died or hung, or the store did not answer. The stage then trains once more.
        """
        return self if self.saving is None else replace(self, state=self.saving.publish(ctx), saving=None)


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
        """Returns the weights if they are already published with their training state, which is published last."""
        checkpoint = self.checkpoint.find(self.identity)
        if checkpoint is None:
            return None
        state = self.state.find(self.identity) if self.state else None
        if state is None and Artifact.open(self.checkpoint.store, checkpoint).manifest.facts.get(STATE_FOLLOWS):
            return None
        return Weights(checkpoint, state, self.reference.find(self.identity) if self.reference else None)


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
    """Runs one job on the worker group and publishes the next averaged reference and the checkpoint.

    The workers write the training state after that. `Weights.saving` of the result publishes it, while other stages
    use the checkpoint. If an interrupted attempt published the checkpoint but no state, the job repeats that attempt:
    the published checkpoint stays, and if the repetition came to other weights, a warning and the state's facts say so.

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
    saving = SavingState(target.state.attempt(target.identity), ctx) if target.state else None
    with ExitStack() as unsaved:
        if saving is not None:
            unsaved.push(saving.files)
        trained = _train_and_publish(weights, batch_file, job_settings, target, ctx, label, saving)
        unsaved.pop_all()
    return trained


def _train_and_publish(
    weights: Weights,
    batch_file: Path,
    job_settings: JobSettings,
    target: Target,
    ctx: StageContext,
    label: str,
    saving: "SavingState | None",
) -> Weights:
    """Does the work of `train_and_publish`, whose caller removes the files of the state after an error."""
    for ref in (weights.checkpoint, job_settings.reference):
        if ref is not None:
            check_weights(ctx.local_folder(ref))
    worker_group = ctx.worker_group
    checkpoint_attempt = target.checkpoint.attempt(target.identity)
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
            out_state_dir=saving.folder if saving else None,
            events_file=ctx.scratch / f"events-{uuid.uuid4().hex[:8]}.jsonl",
        )
        result = worker_group.run(job, on_event)
    values = None
    if target.publish_values and values_file:
        values = target.publish_values(values_file)
        values_file.unlink()
    reference = None
    if reference_attempt is not None:
        reference = reference_attempt.publish({}, **target.inputs)
        if reference.reused:
            ctx.store.delete(reference_attempt.prefix)
    facts = {
        "steps": [step.model_dump() for step in result.steps],
        "totals": result.totals.model_dump(),
        "compute_dtype": job.hardware.compute_dtype,
        STATE_FOLLOWS: saving is not None,
    }
    checkpoint = checkpoint_attempt.publish(facts, **target.inputs, values=values)
    if saving is None:
        kept.discard()
        return Weights(checkpoint, None, reference)
    repeated = {}
    if checkpoint.reused:  # its training state was not there, otherwise nothing would have been trained
        same = content_digest(checkpoint_attempt.files) == checkpoint.digest
        if not same:
            ctx.log.warning(
                "%s: an interrupted command published %s without its training state. Training was repeated from the "
                "same batch and came to other weights, so the kernels do not compute the same numbers each time. The "
                "published weights stay; the next update starts from the repeated ones, which differ from them",
                label, checkpoint.key,
            )  # fmt: skip
        repeated = {"repeated": True, "same_weights": same}
        ctx.store.delete(checkpoint_attempt.prefix)
    saving.complete(worker_group, job_settings, repeated, {**target.inputs, "checkpoint": checkpoint}, kept)
    return Weights(replace(checkpoint, reused=False), None, reference, saving)


class SavingState:
    """The training state of a job while the workers write it, and then while it is hashed or uploaded.

    Args:
        attempt: The attempt that will publish it.
        ctx: The context of the stage that trains.

    Attributes:
        files: The open context of the folder, which stores its files at its end, or removes them after an error.
        folder: The folder into which the workers write.
        key: Key of the state.
    """

    def __init__(self, attempt: Attempt[TrainingState], ctx: StageContext) -> None:
        self._attempt = attempt
        self._progress = ctx.progress
        self.key = attempt.address.key
        self.files = attempt.folder(ctx.scratch, watched("storing TrainingState", self._report))
        self.folder = self.files.__enter__()
        self._write: StateWrite | None = None

    def _report(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        self._progress(label, done, total, figures)

    def complete(
        self,
        worker_group: WorkerGroup,
        job_settings: JobSettings,
        facts: Mapping[str, Any],
        inputs: Mapping[str, Ref[Any] | None],
        kept: KeptSteps,
    ) -> None:
        """Sets what `publish` needs, after the weights are published.

        Args:
            worker_group: The group whose workers write the state.
            job_settings: How the job trained.
            facts: Facts of the state's manifest.
            inputs: Inputs of the state's manifest.
            kept: Step checkpoints of the job, which are needed until the state is published.
        """
        self._group, self._job_settings, self._kept = worker_group, job_settings, kept
        self._facts, self._inputs, self._write = facts, inputs, worker_group.write

    def publish(self, ctx: StageContext) -> Ref[TrainingState]:
        """Waits until the workers have written the state, and publishes it.

        Raises:
            TransientError: The workers died or hung before it was written, or the store did not answer.
            DeerstalkerError: They ran out of memory, or the disk is full.
        """
        assert self._write is not None
        self._progress = ctx.progress
        self._attempt.started = time.perf_counter()
        with ExitStack() as files, doing("saving"):
            files.push(self.files)
            self._write.wait()
        state = self._attempt.publish(self._facts, **self._inputs)
        if not state.reused:
            # A reused state was published by an interrupted attempt, and its numbers are not those in memory.
            self._group.remember(_label(state, self._job_settings), self._write)
        self._kept.discard()
        return state


def save_state(ctx: StageContext, checkpoint: Ref[Checkpoint], *, saving: SavingState) -> Ref[TrainingState]:
    """Publishes the training state of a checkpoint while later stages use the checkpoint (see `SavingState.publish`).

    Args:
        checkpoint: The checkpoint; Prefect shows it.
        saving: The state that the workers write.
    """
    del checkpoint
    return saving.publish(ctx)


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
    kept = trained.state is not None or trained.saving is not None
    lora = job_settings.trainable.parameters == "lora"
    if warning := lost_warning(lost, setting, max(job_settings.learning_rates), kept=kept, lora=lora):
        ctx.log.warning("%s", warning)


def _label(state: Ref[TrainingState], job_settings: JobSettings) -> str:
    """Returns the label of a state in the workers' memory: its digest, and the precision of the job that left it."""
    return f"{state.digest} {job_settings.optimizer.master_dtype}"


def state_beside(checkpoint: Ref[Checkpoint], store: Store) -> Ref[TrainingState] | None:
    """Returns the training state that was saved with a checkpoint, or None if none was.

    Raises:
        BadInputError: The state of this checkpoint is not published yet.
    """
    key = state_key(checkpoint.key)
    if key is None or not Artifact.open(store, checkpoint).manifest.facts.get(STATE_FOLLOWS):
        return None
    artifact = Artifact.at(store, key, TrainingState) if is_published(store, key) else None
    if artifact is None or artifact.manifest.inputs["checkpoint"]["digest"] != checkpoint.digest:
        raise BadInputError(
            f"{key} in {store.url}", "not published yet", f"the training state of {checkpoint.key}",
            "continue the run, which publishes it",
        )  # fmt: skip
    return artifact.ref


def carry_over(weights: Weights, target: Target, ctx: StageContext) -> Weights:
    """Publishes the weights unchanged, for an iteration that is frozen or has no training signal."""
    reference = None
    if target.reference is not None and weights.reference is not None:
        reference = _copy(weights.reference, target.reference.attempt(target.identity), target.inputs, ctx)
    with_state = target.state is not None and weights.state is not None
    attempt = target.checkpoint.attempt(target.identity)
    checkpoint = _copy(weights.checkpoint, attempt, target.inputs, ctx, {STATE_FOLLOWS: with_state})
    state = None
    if target.state is not None and weights.state is not None:
        inputs = {**target.inputs, "checkpoint": checkpoint}
        state = _copy(weights.state, target.state.attempt(target.identity), inputs, ctx)
    return Weights(replace(checkpoint, reused=False), state, reference)


def _copy(
    source: Ref[Any],
    attempt: Attempt[Any],
    inputs: Mapping[str, Ref[Any] | None],
    ctx: StageContext,
    facts: Mapping[str, Any] | None = None,
) -> Ref[Any]:
    with ctx.folder(attempt) as folder:
        shutil.copytree(ctx.local_folder(source), folder, dirs_exist_ok=True)
    ref = attempt.publish({"steps": [], "unchanged": True, **(facts or {})}, **inputs)
    if ref.reused:
        ctx.store.delete(attempt.prefix)  # an interrupted attempt has published the same
    return ref
