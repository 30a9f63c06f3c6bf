"""Runs a training job on artifacts and publishes its results, for the stages that train."""

import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress, Attempt
from artifacts.errors import BadInputError, TransientError
from artifacts.identity import Identity
from artifacts.manifest import content_digest
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, OptimizerState, Ref
from artifacts.tensors import PackedBatch
from stages.context import StageContext
from stages.models.adapters import BASE_LINK
from stages.models.shape import read_shape
from stages.models.stored import BASE, base_ref
from stages.models.tensors import check_weights
from stages.training.checkpointing.kept_steps import KeptSteps
from stages.training.job import JobPaths, JobSettings, TrainJob
from stages.training.results import TrainResult
from stages.training.rounding import lost_warning
from stages.training.saved_state import STATE_FOLLOWS, SavingState, label_of


@dataclass(frozen=True)
class Weights:
    """A checkpoint, its optimizer state, and the reference model of the KL term.

    Attributes:
        checkpoint: The checkpoint.
        state: The optimizer state that was saved with it; None if there is none, or if it is not published yet.
        reference: The reference model; None without one.
        saving: Publishes the optimizer state, which the workers still write; None if there is nothing to publish.
    """

    checkpoint: Ref[Checkpoint]
    state: Ref[OptimizerState] | None = None
    reference: Ref[Checkpoint] | None = None
    saving: SavingState | None = field(default=None, compare=False, repr=False)

    @property
    def reused(self) -> bool:
        """Whether the checkpoint was found in the store instead of being trained."""
        return self.checkpoint.reused

    def saved(self, ctx: StageContext) -> "Weights":
        """Returns the weights with their optimizer state, after it is published. For callers without a flow.

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
        state: Address of the optimizer state; None if none is published.
        inputs: Artifacts that the job reads, by role.
        reference: Address of the next averaged reference; None if none is published.
        publish_values: Publishes the values from the file that the job wrote, before the checkpoint. None if the job
            writes no values.
        values: Values that an interrupted attempt published; None if there are none.
    """

    identity: Identity
    checkpoint: ArtifactAddress[Checkpoint]
    state: ArtifactAddress[OptimizerState] | None
    inputs: Mapping[str, Ref[Any] | None]
    reference: ArtifactAddress[Checkpoint] | None = None
    publish_values: Callable[[Path], Ref[Any]] | None = None
    values: Ref[Any] | None = None

    def published(self) -> Weights | None:
        """Returns the weights if they and their optimizer state, which comes last, are already published; else None."""
        checkpoint = self.checkpoint.find(self.identity)
        if checkpoint is None:
            return None
        state = self.state.find(self.identity) if self.state else None
        if state is None and Artifact.open(self.checkpoint.store, checkpoint).manifest.facts.get(STATE_FOLLOWS):
            return None
        return Weights(checkpoint, state, self.reference.find(self.identity) if self.reference else None)


@contextmanager
def batch_file(
    batch: PackedBatch, model: Ref[Checkpoint], ctx: StageContext, *, where: str, remedy: str
) -> Generator[Path]:
    """Yields a file with a batch that no artifact holds, in a folder of its own, which the end of the block removes.

    Args:
        batch: The batch.
        model: The model of the job that reads the file.
        ctx: The context of the stage.
        where: Name of the model in the recipe.
        remedy: What the user can do about a completion that is too long.

    Raises:
        BadInputError: A prompt with its completion is longer than the model's context, where its output means nothing.
    """
    limit, longest = read_shape(ctx.local_folder(model)).max_positions, int(batch.position_ids.max(initial=-1)) + 1
    if longest > limit:
        problem = f"a prompt with its completion has {longest} tokens"
        raise BadInputError(where, problem, f"at most {limit}, the context of {model.key}", remedy)
    with tempfile.TemporaryDirectory(prefix="batch-", dir=ctx.scratch) as folder:
        file = Path(folder) / "batch.safetensors"
        file.write_bytes(batch.to_bytes())
        yield file


def train_and_publish(
    weights: Weights, batch_file: Path, settings: JobSettings, target: Target, ctx: StageContext, *, label: str
) -> Weights:
    """Runs one job on the worker group and publishes the next averaged reference and the checkpoint.

    The workers write the optimizer state after that. `Weights.saving` of the result publishes it, while other stages
    use the checkpoint. If an interrupted attempt published the checkpoint but no state, the job repeats that attempt:
    the published checkpoint stays, and if the repetition gives other weights, a warning and the state's facts report
    it.

    Args:
        weights: Weights to start from, and the reference model if the job has one.
        batch_file: Packed batch (safetensors).
        settings: How the job trains on the batch.
        target: Where the results are published.
        ctx: The context of the stage.
        label: Name of the job in progress reports and logs.

    Raises:
        BadInputError: The tensors of the checkpoint or the reference are not those of its config.json.
        TransientError: The trainer died or hung.
        DeerstalkerError: The trainer ran out of memory, or cannot train this checkpoint.
    """
    for ref in (weights.checkpoint, weights.reference):
        if ref is not None:
            check_weights(ctx.local_folder(ref))
    with ExitStack() as unsaved:
        saving = SavingState(target.state.attempt(target.identity), ctx) if target.state else None
        if saving is not None:
            unsaved.push(saving.files)
            unsaved.callback(ctx.worker_group.stop)  # else they would write the state of an attempt that has failed
        launch = _Launch(target, ctx, label, saving)
        job, result = launch.train(weights, batch_file, settings)
        trained = launch.publish(job, result)
        unsaved.pop_all()
    return trained


class _Launch:
    """One job in progress: its results and the addresses where they are published.

    Args:
        target: Where the results are published.
        ctx: The context of the stage.
        label: Name of the job in progress reports and logs.
        saving: The optimizer state; None if none is published.
    """

    def __init__(self, target: Target, ctx: StageContext, label: str, saving: SavingState | None) -> None:
        self._target, self._ctx, self._label, self._saving = target, ctx, label, saving
        self._worker_group = ctx.worker_group
        self._checkpoint = target.checkpoint.attempt(target.identity)
        self._reference = target.reference.attempt(target.identity) if target.reference else None
        self._kept = KeptSteps(target.checkpoint, target.identity, ctx)

    def train(self, weights: Weights, batch_file: Path, settings: JobSettings) -> tuple[TrainJob, TrainResult]:
        """Runs the job, and stores its files except those of the optimizer state."""
        ctx, unique = self._ctx, uuid.uuid4().hex[:8]
        with self._kept, ExitStack() as folders:

            def folder(attempt: Attempt[Any] | None) -> Path | None:
                return folders.enter_context(ctx.folder(attempt)) if attempt else None

            resume_dir = self._kept.latest()
            state = None if resume_dir else weights.state
            warm = state is not None and self._worker_group.holding == label_of(state, settings)
            checkpoint_dir = ctx.local_folder(weights.checkpoint)
            paths = JobPaths(
                checkpoint_dir=checkpoint_dir,
                batch_file=batch_file,
                state_dir=ctx.local_folder(state) if state is not None and not warm else None,
                resume_dir=resume_dir,
                reference_dir=ctx.local_folder(weights.reference) if weights.reference else None,
                step_checkpoints_dir=self._kept.inbox,
                out_checkpoint_dir=folders.enter_context(ctx.folder(self._checkpoint)),
                out_state_dir=self._saving.folder if self._saving else None,
                out_reference_dir=folder(self._reference),
                out_values_file=ctx.scratch / f"values-{unique}.safetensors" if self._target.publish_values else None,
            )
            job = TrainJob(
                settings=settings,
                paths=paths,
                hardware=ctx.profile.trainer.on_this_machine(read_shape(checkpoint_dir).embed_dim),
                warm=warm,
                events_file=ctx.scratch / f"events-{unique}.jsonl",
            )
            try:
                return job, self._worker_group.run(job, self._on_event)
            except BadInputError as error:
                if resume_dir is None or resume_dir.is_dir():
                    raise
                found = "removed by another run, which trains the same"
                raise TransientError(str(resume_dir), found, "a step checkpoint that stays", "try again") from error

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "step":
            figures = {key: event[key] for key in ("loss", "tokens_per_s") if event[key] is not None}
            self._ctx.progress(self._label, event["step"], event["of"], figures)
            if event["skipped"]:
                self._ctx.log.warning(
                    "%s: optimizer step %d of %d was skipped: its gradient is not finite",
                    self._label, event["step"], event["of"],
                )  # fmt: skip
        elif event["event"] == "step_checkpoint":
            self._kept.keep(event["step"], Path(event["folder"]))

    def publish(self, job: TrainJob, result: TrainResult) -> Weights:
        """Publishes the results in the order in which a later attempt looks for them: the checkpoint after the rest."""
        target, ctx, values, reference = self._target, self._ctx, self._target.values, None
        if target.publish_values and (file := job.paths.out_values_file):
            values = target.publish_values(file)
            file.unlink()
        if self._reference is not None:
            reference = self._reference.publish({}, **target.inputs)
            if reference.reused:
                ctx.store.delete(self._reference.prefix)
        facts = {
            "steps": [step.model_dump() for step in result.steps],
            "totals": result.totals.model_dump(),
            "compute_dtype": job.hardware.compute_dtype,
            STATE_FOLLOWS: self._saving is not None,
        }
        checkpoint = self._checkpoint.publish(facts, **target.inputs, values=values)
        if self._saving is None:
            if checkpoint.reused:  # another attempt has published the same
                ctx.store.delete(self._checkpoint.prefix)
            self._kept.discard()
            return Weights(checkpoint, None, reference)
        inputs = {**target.inputs, "checkpoint": checkpoint}
        self._saving.complete(self._worker_group, job.settings, self._repeated(checkpoint), inputs, self._kept.discard)
        return Weights(replace(checkpoint, reused=False), None, reference, self._saving)

    def _repeated(self, checkpoint: Ref[Checkpoint]) -> dict[str, bool]:
        """Returns the facts of a state whose checkpoint an interrupted attempt published; none for a new checkpoint."""
        if not checkpoint.reused:
            return {}
        same = content_digest(self._checkpoint.files) == checkpoint.digest
        if not same:
            self._ctx.log.warning(
                "%s: an interrupted command published %s without its optimizer state. Training was repeated from the "
                "same batch and gave other weights, so the kernels do not compute the same numbers each time. The "
                "published weights stay; the next update starts from the repeated ones, which differ from them",
                self._label, checkpoint.key,
            )  # fmt: skip
        self._ctx.store.delete(self._checkpoint.prefix)
        return {"repeated": True, "same_weights": same}


def warn_of_rounding(trained: Weights, settings: JobSettings, setting: str, ctx: StageContext) -> None:
    """Logs a warning if rounding to bf16 lost most of the movement of a job's weights.

    Args:
        trained: What the job published.
        settings: How it was trained.
        setting: Name of the learning rate in the recipe.
        ctx: The context of the stage.
    """
    lost: float | None = Artifact.open(ctx.store, trained.checkpoint).manifest.facts["totals"]["movement_lost"]
    if lost is None:
        return
    kept = trained.state is not None or trained.saving is not None
    lora = settings.trainable.parameters == "lora"
    if warning := lost_warning(lost, setting, max(settings.learning_rates), kept=kept, lora=lora):
        ctx.log.warning("%s", warning)


def carry_over(weights: Weights, target: Target, ctx: StageContext) -> Weights:
    """Publishes the weights unchanged, for an iteration that is frozen or has no training signal."""
    reference, base = None, base_ref(ctx.store, weights.checkpoint)
    inputs = target.inputs if base == weights.checkpoint else {**target.inputs, BASE: base}
    if target.reference is not None and weights.reference is not None:
        reference = _copy(weights.reference, target.reference.attempt(target.identity), inputs, ctx)
    with_state = target.state is not None and weights.state is not None
    attempt = target.checkpoint.attempt(target.identity)
    checkpoint = _copy(weights.checkpoint, attempt, inputs, ctx, {STATE_FOLLOWS: with_state})
    state = None
    if target.state is not None and weights.state is not None:
        attempt_of_state = target.state.attempt(target.identity)
        state = _copy(weights.state, attempt_of_state, {**target.inputs, "checkpoint": checkpoint}, ctx)
    return Weights(replace(checkpoint, reused=False), state, reference)


def _copy(
    source: Ref[Any],
    attempt: Attempt[Any],
    inputs: Mapping[str, Ref[Any] | None],
    ctx: StageContext,
    facts: Mapping[str, Any] | None = None,
) -> Ref[Any]:
    with ctx.folder(attempt) as folder:
        shutil.copytree(ctx.local_folder(source), folder, ignore=shutil.ignore_patterns(BASE_LINK), dirs_exist_ok=True)
    ref = attempt.publish({"steps": [], "unchanged": True, **(facts or {})}, **inputs)
    if ref.reused:
        ctx.store.delete(attempt.prefix)  # an interrupted attempt has published the same
    return ref
