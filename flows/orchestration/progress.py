"""Progress bars of long stages in Prefect's interface."""

import contextvars
import logging
import re
import threading
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from prefect.context import FlowRunContext

from flows.orchestration.api_errors import API_ERRORS
from flows.orchestration.artifact_keys import slug
from flows.orchestration.shown_artifacts import ShownArtifacts
from stages.context import StageContext

UPDATE_INTERVAL_S = 1.0
_CLOSE_TIMEOUT_S = 5.0


@contextmanager
def shown_progress(ctx: StageContext) -> Generator[StageContext]:
    """Yields a context whose progress reports also appear as a progress bar of the current task run.

    Each kind of report (`sample`, `finetune`, `evaluate sampled`) has one key in a run, the same in all iterations.
    """
    report = ctx.progress
    board = _Board(ctx.log)

    def both(label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        report(label, done, total, figures)
        board.report(label, done, total)

    try:
        yield ctx.reporting_to(both)
    finally:
        board.close()


def kind_of(label: str) -> str:
    """Returns a label without the number of the iteration: `sample` for `sample 12`."""
    return re.sub(r"[ \d]+$", "", label)


class _Board:
    """Sends the newest report of each label to the server from its own thread, so that no stage waits for a server."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> None:
        flow_run = FlowRunContext.get()
        name = flow_run.flow_run.name if flow_run and flow_run.flow_run else ""
        self._log, self._run = log, slug(name)
        self._context = contextvars.copy_context()  # ties the artifact to this task run
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, int]] = {}
        self._artifacts: dict[str, uuid.UUID] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, label: str, done: int, total: int) -> None:
        with self._lock:
            self._newest[label] = (done, total)
            if self._thread is None:
                self._thread = threading.Thread(target=self._context.run, args=(self._follow,), daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _follow(self) -> None:
        try:
            with ShownArtifacts() as shown:
                last = False
                while not last:
                    last = self._closing.is_set()
                    with self._lock:
                        newest, self._newest = self._newest, {}
                    for label, (done, total) in newest.items():
                        self._show(shown, label, done, total)
                    if not last:
                        self._closing.wait(UPDATE_INTERVAL_S)
        except API_ERRORS as error:
            self._log.warning("progress is no longer shown in Prefect: %s", error)

    def _show(self, shown: ShownArtifacts, label: str, done: int, total: int) -> None:
        percent = 100.0 * done / max(1, total)
        description = f"{label}: {done} of {total}"
        if label in self._artifacts:
            shown.update_progress(self._artifacts[label], percent, description)
        else:
            key = f"{self._run}-{slug(kind_of(label).replace(' ', '-'))}"
            self._artifacts[label] = shown.progress(key, percent, description)
