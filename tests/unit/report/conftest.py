"""A stand-in for Prefect's API, which keeps what the pages of a run send to it."""

import json
from collections.abc import Generator
from typing import Any
from uuid import uuid4

import prefect
import pytest
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.support.serving import Replies, http_server


@pytest.fixture
def prefect_pages(monkeypatch: pytest.MonkeyPatch) -> Generator[dict[str, dict[str, Any]]]:
    """The newest version of each artifact that Prefect's API is sent, by key; events go nowhere."""
    sent: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(EventsWorker, "_client_override", (NullEventsClient, ()))

    class Api(Replies):
        def do_GET(self) -> None:
            if "csrf" in self.path:
                self.send_error(404)
            else:
                self.reply(prefect.__version__)

        def do_POST(self) -> None:
            artifact = json.loads(self.body())
            sent[artifact["key"]] = artifact
            self.reply({**artifact, "id": str(uuid4())})

    with http_server(Api) as url, temporary_settings({PREFECT_API_URL: f"{url}/api"}):
        yield sent
