"""Creates artifacts in Prefect's interface over one connection.

Prefect's own functions open a client for each artifact. Loading the certificates of five clients took half of the time
in which an iteration was shown.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, ClassVar, Self
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext, TaskRunContext
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings


class ShownArtifacts:
    """Creates artifacts of the current task run and flow run.

    Prefect's client retries a request for a minute. If that fails, later requests of this process are not retried until
    one succeeds, so that a missing server costs the minute only once.
    """

    _server_missing: ClassVar[bool] = False

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            if ShownArtifacts._server_missing:
                opened.enter_context(temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}))
            self._client = opened.enter_context(get_client(sync_client=True))
            self._opened = opened.pop_all()
        task, flow = TaskRunContext.get(), FlowRunContext.get()
        self._task_run = task.task_run.id if task else None
        self._flow_run = flow.flow_run.id if flow and flow.flow_run else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, httpx.TransportError):
            ShownArtifacts._server_missing = True
        self._opened.__exit__(kind, error, trace)

    def markdown(self, key: str, text: str, description: str) -> UUID:
        """Creates a page of Markdown."""
        return self._create("markdown", key, text, description)

    def table(self, key: str, rows: Sequence[dict[str, Any]], description: str) -> UUID:
        """Creates a table; rows have the same columns and no NaN."""
        return self._create("table", key, json.dumps(rows, allow_nan=False), description)

    def image(self, key: str, address: str, description: str) -> UUID:
        """Creates a picture from its address, which may be a data URL."""
        return self._create("image", key, address, description)

    def progress(self, key: str, percent: float, description: str) -> UUID:
        """Creates a progress bar, from 0 to 100."""
        return self._create("progress", key, percent, description)

    def update_progress(self, artifact: UUID, percent: float, description: str) -> None:
        """Changes a progress bar."""
        self._client.update_artifact(artifact, ArtifactUpdate(data=percent, description=description))

    def _create(self, kind: str, key: str, data: str | float, description: str) -> UUID:
        artifact = ArtifactCreate(
            type=kind, key=key, data=data, description=description,
            task_run_id=self._task_run, flow_run_id=self._flow_run,
        )  # fmt: skip
        artifact_id = self._client.create_artifact(artifact).id
        ShownArtifacts._server_missing = False
        return artifact_id
