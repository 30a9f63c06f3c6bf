"""A stand-in for Prefect's API, which keeps what the pages of a run send to it."""

import json
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import prefect
import pytest
from prefect.events.clients import NullEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.support.serving import serving


@pytest.fixture
def prefect_pages(monkeypatch: pytest.MonkeyPatch) -> Generator[dict[str, dict[str, Any]]]:
    """The newest version of each artifact that Prefect's API is sent, by key; events go nowhere."""
    sent: dict[str, dict[str, Any]] = {}
    monkeypatch.setattr(EventsWorker, "_client_override", (NullEventsClient, ()))

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "csrf" in self.path:
                self.send_error(404)
            else:
                self._answer(prefect.__version__)

        def do_POST(self) -> None:
            artifact = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sent[artifact["key"]] = artifact
            self._answer({**artifact, "id": str(uuid4())})

        def _answer(self, document: object) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with (
        serving(ThreadingHTTPServer(("127.0.0.1", 0), Api)) as server,
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}),
    ):
        yield sent
