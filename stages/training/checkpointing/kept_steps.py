"""Keeps step checkpoints of an unfinished training job in the store, so that another machine can continue the job."""

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, DeerstalkerError, IntegrityError
from artifacts.identity import Identity
from artifacts.layout import artifact_of, manifest_key, step_key, step_of
from artifacts.refs import StepCheckpoint
from artifacts.store.store import MissingKeyError
from stages.context import StageContext


class KeptSteps:
    """The step checkpoints of a job in the store. Each is an artifact, so it is complete or absent.

    Args:
        address: Address at which the job publishes its result.
        identity: Identity of that result; step checkpoints of another identity are ignored.
        ctx: The context of the stage.

    Attributes:
        inbox: Local folder in which the workers write each step checkpoint as a folder, for `keep`.
    """

    def __init__(self, address: ArtifactAddress[Any], identity: Identity, ctx: StageContext) -> None:
        self._identity, self._ctx = identity, ctx
        self._key = address.progress_key(identity)
        self._stored_steps: set[int] = set()
        self.inbox = Path(tempfile.mkdtemp(prefix="steps-", dir=ctx.scratch))
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="kept-steps")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until pending step checkpoints are stored and removes the inbox.

        After a signal it abandons the pending ones; the next attempt then uses an older step checkpoint.
        """
        if kind is not None and not issubclass(kind, Exception):
            self._ctx.store.abandon()
        self._storing.shutdown(wait=True)
        shutil.rmtree(self.inbox, ignore_errors=True)

    def latest(self) -> Path | None:
        """Returns a local folder with the newest intact step checkpoint, or None if there is none."""
        stored = (artifact_of(key) for key in self._ctx.store.list(self._key))
        steps = (step_of(key.removeprefix(f"{self._key}/")) for key in stored if key)
        self._stored_steps = {step for step in steps if step is not None}
        for step in sorted(self._stored_steps, reverse=True):
            with suppress(MissingKeyError):  # another machine has advanced and removed it
                try:
                    if ref := self._address(step).find(self._identity):
                        return self._ctx.local_folder(ref)
                except IntegrityError as error:
                    self._ctx.log.warning("a step checkpoint is damaged, and is written again: %s", error)
                    self._ctx.store.delete(manifest_key(self._address(step).key))
                except BadInputError as error:
                    self._ctx.log.warning("a step checkpoint is ignored: %s", error)
        return None

    def keep(self, step: int, folder: Path) -> None:
        """Moves a finished step checkpoint from the inbox to the store in another thread, and deletes older ones.

        If the store fails, a warning is logged and the training continues.
        """
        self._storing.submit(self._keep, step, folder)

    def _keep(self, step: int, folder: Path) -> None:
        try:
            attempt = self._address(step).attempt(self._identity)
            with attempt.folder(self._ctx.scratch) as stored:
                for path in folder.iterdir():
                    shutil.move(path, stored / path.name)
            attempt.publish({"step": step})
            for older in {known for known in self._stored_steps if known < step}:
                key = self._address(older).key
                self._ctx.store.delete(manifest_key(key))  # first, so that no reader finds a partial artifact
                self._ctx.store.delete(key)
                self._stored_steps.discard(older)
            self._stored_steps.add(step)
        except (DeerstalkerError, OSError) as error:
            self._ctx.log.warning("the checkpoint of step %d was not kept: %s", step, error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # the workers write the next one when the inbox is empty

    def discard(self) -> None:
        """Removes all step checkpoints; call it once the result of the job is published."""
        self._storing.shutdown(wait=True)
        self._ctx.store.delete(self._key)

    def _address(self, step: int) -> ArtifactAddress[StepCheckpoint]:
        return ArtifactAddress(self._ctx.store, step_key(self._key, step), StepCheckpoint)
