"""A Prefect server that is gone costs a run a minute once, and not at every artifact that it would show."""

import socket
import threading
import time
from collections.abc import Generator

import httpx
import pytest
from prefect.client import base
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.orchestration.shown_artifacts import ShownArtifacts

RETRIES = 4


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """Requests to something that hangs up on each; Prefect's client waits no time between them."""
    received: list[int] = []
    monkeypatch.setattr(base.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.01)))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                received.append(len(connection.recv(100)))
                connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: address, PREFECT_CLIENT_MAX_RETRIES: RETRIES}):
            yield received
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    ShownArtifacts._server_missing = False


def show() -> None:
    with pytest.raises(httpx.TransportError), ShownArtifacts() as shown:
        shown.markdown("key", "text", "words")


def test_a_server_that_is_gone_is_asked_patiently_once(requests: list[int]) -> None:
    show()
    patiently = len(requests)
    assert patiently > RETRIES
    show()
    once = len(requests) - patiently
    assert once <= patiently - RETRIES
    show()
    assert len(requests) == patiently + 2 * once
