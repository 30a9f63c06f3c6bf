"""Step checkpoints of an unfinished training job in the store, so that another machine goes on where one was lost."""

import re
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from artifacts.errors import BadInputError, DeerstalkerError, IntegrityError
from artifacts.identity import Identity
from artifacts.manifest import MANIFEST_NAME
from artifacts.refs import StepCheckpoint
from artifacts.slot import Slot
from artifacts.store import MissingKeyError
from stages.context import StageContext

_MANIFEST = re.compile(rf"step-(\d{{6}})/{re.escape(MANIFEST_NAME)}")


class KeptSteps:
    """The step checkpoints under the address of what a job makes, each an artifact: whole, or not there.

    Args:
        slot: Where the job publishes in the end.
        identity: Of what it makes; step checkpoints of another identity are never found.
        ctx: The context of the stage.

    Attributes:
        inbox: Local folder in which the workers leave a step checkpoint a folder, for `keep`.
    """

    def __init__(self, slot: Slot[Any], identity: Identity, ctx: StageContext) -> None:
        self._identity, self._ctx = identity, ctx
        self._key = slot.progress_key(identity)
        self._seen: set[int] = set()
        self.inbox = Path(tempfile.mkdtemp(prefix="steps-", dir=ctx.scratch))
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="kept-steps")
        self._stored: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for what is on its way to the store, which the next attempt wants, and empties the inbox.

        A signal does not wait for it: then the next attempt finds the step checkpoint before.
        """
        if kind is not None and not issubclass(kind, Exception):
            self._ctx.store.abandon()
        self._storing.shutdown(wait=True)
        shutil.rmtree(self.inbox, ignore_errors=True)

    def latest(self) -> Path | None:
        """A local folder with the newest intact step checkpoint, or None where there is none."""
        found = (_MANIFEST.fullmatch(key.removeprefix(f"{self._key}/")) for key in self._ctx.store.list(self._key))
        self._seen = {int(match[1]) for match in found if match}
        for step in sorted(self._seen, reverse=True):
            with suppress(MissingKeyError):  # removed by another machine, which is further on
                try:
                    if ref := self._slot(step).find(self._identity):
                        return self._ctx.local_folder(ref)
                except (IntegrityError, BadInputError) as error:
                    self._ctx.log.warning("a step checkpoint is left out: %s", error)
        return None

    def keep(self, step: int, folder: Path) -> None:
        """Moves a finished step checkpoint from the inbox to the store, beside the training; older ones go.

        A store that refuses costs the step checkpoint, not the training.
        """
        self._stored = self._storing.submit(self._keep, step, folder)

    def _keep(self, step: int, folder: Path) -> None:
        try:
            attempt = self._slot(step).attempt(self._identity)
            with attempt.folder(self._ctx.scratch) as stored:
                for path in folder.iterdir():
                    shutil.move(path, stored / path.name)
            attempt.publish({"step": step})
            for older in {seen for seen in self._seen if seen < step}:
                self._ctx.store.delete(f"{self._slot(older).key}/{MANIFEST_NAME}")  # first, so that none is seen torn
                self._ctx.store.delete(self._slot(older).key)
                self._seen.discard(older)
            self._seen.add(step)
        except (DeerstalkerError, OSError) as error:
            self._ctx.log.warning("the checkpoint of step %d was not kept: %s", step, error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # an inbox without it asks the workers for the next

    def discard(self) -> None:
        """Removes all of them, once what they lead to is published."""
        self._storing.shutdown(wait=True)
        self._ctx.store.delete(self._key)

    def _slot(self, step: int) -> Slot[StepCheckpoint]:
        return Slot(self._ctx.store, f"{self._key}/step-{step:06d}", StepCheckpoint)
