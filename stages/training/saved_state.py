"""The optimizer state of a checkpoint: workers write it, and it is published while later stages use the checkpoint."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from artifacts.activity import doing
from artifacts.address import Attempt
from artifacts.errors import BadInputError
from artifacts.layout import state_key
from artifacts.reading import Artifact, is_published
from artifacts.refs import Checkpoint, OptimizerState, Ref
from artifacts.store.progress import watched
from artifacts.store.store import Store
from stages.context import StageContext
from stages.training.job import JobSettings
from stages.training.worker_group.group import StateWrite, WorkerGroup

STATE_FOLLOWS = "state_follows"
"""Fact of a checkpoint: whether its optimizer state is published beside it, after the checkpoint."""


class SavingState:
    """The optimizer state of a job while the workers write it, and then while it is hashed or uploaded.

    Args:
        attempt: The attempt that will publish it.
        ctx: The context of the stage that trains.

    Attributes:
        files: The open context of the folder, which stores its files at its end, or removes them after an error.
        folder: The folder into which the workers write.
        key: Key of the state.
    """

    def __init__(self, attempt: Attempt[OptimizerState], ctx: StageContext) -> None:
        self._attempt = attempt
        self._progress = ctx.progress
        self.key = attempt.address.key
        self.files = attempt.folder(ctx.scratch, watched("storing OptimizerState", self._report))
        self.folder = self.files.__enter__()
        self._write: StateWrite | None = None

    def _report(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        self._progress(label, done, total, figures)

    def complete(
        self,
        worker_group: WorkerGroup,
        settings: JobSettings,
        facts: Mapping[str, Any],
        inputs: Mapping[str, Ref[Any] | None],
        discard: Callable[[], None],
    ) -> None:
        """Sets what `publish` needs, after the weights are published.

        Args:
            worker_group: The group whose workers write the state.
            settings: How the job trained.
            facts: Facts of the state's manifest.
            inputs: Inputs of the state's manifest.
            discard: Removes the step checkpoints of the job, which are needed until the state is published.
        """
        self._group, self._settings, self._discard = worker_group, settings, discard
        self._facts, self._inputs, self._write = facts, inputs, worker_group.write

    def publish(self, ctx: StageContext) -> Ref[OptimizerState]:
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
        if state.reused:  # another attempt published it, and its numbers are not those in memory
            ctx.store.delete(self._attempt.prefix)
        else:
            self._group.remember(label_of(state, self._settings), self._write)
        self._discard()
        return state


def save_state(ctx: StageContext, checkpoint: Ref[Checkpoint], *, saving: SavingState) -> Ref[OptimizerState]:
    """Publishes the optimizer state of a checkpoint while later stages use the checkpoint (see `SavingState.publish`).

    Args:
        checkpoint: The checkpoint; Prefect shows it.
        saving: The state that the workers write.
    """
    del checkpoint
    return saving.publish(ctx)


def is_saved(checkpoint: Ref[Any], store: Store) -> bool:
    """Returns whether the optimizer state of a checkpoint is published; True if it has none."""
    try:
        state_beside(checkpoint, store)
    except BadInputError:
        return False
    return True


def state_beside(checkpoint: Ref[Checkpoint], store: Store) -> Ref[OptimizerState] | None:
    """Returns the optimizer state that was saved with a checkpoint, or None if none was.

    Raises:
        BadInputError: The state of this checkpoint is not published yet.
    """
    key = state_key(checkpoint.key)
    if key is None or not Artifact.open(store, checkpoint).manifest.facts.get(STATE_FOLLOWS):
        return None
    artifact = Artifact.at(store, key, OptimizerState) if is_published(store, key) else None
    if artifact is None or artifact.manifest.inputs["checkpoint"]["digest"] != checkpoint.digest:
        raise BadInputError(
            f"{key} in {store.url}", "not published yet", f"the optimizer state of {checkpoint.key}",
            "continue the run, which publishes it",
        )  # fmt: skip
    return artifact.ref


def label_of(state: Ref[OptimizerState], settings: JobSettings) -> str:
    """Returns the label of a state in the workers' memory: its digest, and what the job that left it trained, how."""
    return f"{state.digest} {settings.optimizer.master_dtype} {settings.trainable.model_dump_json()}"
