"""The guard of our Prefect server: which Host and Origin headers it lets through, over HTTP and WebSockets."""

import json
import socket
from collections.abc import Generator, Mapping
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows.orchestration.server.own_pages import own_names
from tests.support.prefect_server import own_server, prefect_api

LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    variables = {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "*, https://prefect.example/"}
    with own_server(tmp_path_factory.mktemp("server"), **variables) as url:
        yield url


def _port(api: str) -> int:
    return int(api.rpartition(":")[2].partition("/")[0])


def _ask(api: str, headers: Mapping[str, str], method: str = "GET", path: str = "/version", **sent: Any) -> int:
    given = {name: value.format(port=_port(api)) for name, value in headers.items()}
    return httpx.request(method, api + path, headers=given, trust_env=False, timeout=60, **sent).status_code


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST", 200),  # a tunnel from another port
        ("prefect.example", 200),  # of a proxy that the user named
        ("evil.example", 421),
        ("evil.example:{port}", 421),
        ("127.0.0.1.evil.example:{port}", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("10.0.0.1:{port}", 421),
        ("", 421),
    ],
)
def test_a_foreign_host_is_refused(api: str, host: str, status: int) -> None:
    assert _ask(api, {"host": host}) == status


def test_a_request_without_a_host_or_with_two_is_refused(api: str) -> None:
    def raw(lines: str) -> str:
        with socket.create_connection(("127.0.0.1", _port(api))) as connection:
            connection.sendall(f"GET /api/version {lines}\r\n\r\n".encode())
            return connection.recv(100).decode().split()[1]

    assert raw("HTTP/1.0") == "421"
    assert raw("HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example").startswith("4")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:{port}"}, 200),
        ({"origin": "http://localhost:{port}"}, 200),  # the page at one name asks the other
        ({"origin": "http://localhost:8000", "host": "localhost:8000"}, 200),  # a tunnel from another port
        ({"origin": "https://prefect.example"}, 200),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://evil.example:{port}"}, 403),
        ({"origin": "http://localhost:{port}.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        (LINK, 200),
        (LINK | {"sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}, 403),
    ],
)
def test_pages_of_other_origins_are_refused(api: str, headers: dict[str, str], status: int) -> None:
    assert _ask(api, headers) == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/json", None])
def test_a_foreign_page_changes_nothing_by_any_method(api: str, method: str, content_type: str | None) -> None:
    headers = {"origin": "http://evil.example", **({"content-type": content_type} if content_type else {})}
    assert _ask(api, headers, method, "/flows/", content=json.dumps({"name": "foreign"})) == 403
    assert "foreign" not in [flow["name"] for flow in prefect_api(api, "POST", "/flows/filter", {})]


def test_replies_may_be_read_by_own_pages_only(api: str) -> None:
    def allowed(origin: str) -> str | None:
        answer = httpx.get(f"{api}/version", headers={"origin": origin}, trust_env=False, timeout=60)
        return answer.headers.get("access-control-allow-origin")

    assert allowed(f"http://localhost:{_port(api)}") == f"http://localhost:{_port(api)}"
    assert allowed("http://evil.example") is None
    shown = httpx.get(f"{api}/version", trust_env=False, timeout=60)
    assert shown.headers["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize("path", ["/events/in", "/events/out", "/logs/out", "/task_runs/subscriptions/scheduled"])
def test_websockets_are_guarded_like_the_rest(api: str, path: str) -> None:
    url = f"ws://127.0.0.1:{_port(api)}/api{path}"
    for headers in ({"Host": f"evil.example:{_port(api)}"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=headers, proxy=None, open_timeout=60).close()
        assert refused.value.response.status_code == 403
    origin, patient = f"http://127.0.0.1:{_port(api)}", 60
    with connect(url, origin=origin, subprotocols=["prefect"], proxy=None, open_timeout=patient) as own:  # type: ignore[list-item]
        own.send(json.dumps({"type": "auth", "token": None}))
        assert json.loads(own.recv(timeout=60)) == {"type": "auth_success"}


def test_a_server_that_other_machines_reach_is_called_by_addresses_and_its_names() -> None:
    names = own_names("0.0.0.0", 4200, "Prefect.Internal", {})
    for host in ("prefect.internal:4200", "10.0.0.7:4200", "[fe80::1]:4200", "localhost", socket.gethostname()):
        assert names.is_own_host(host), host
    for host in ("evil.example", "10.0.0.7.evil.example", "[evil]", "1.2.3.4.5"):
        assert not names.is_own_host(host), host
    assert names.is_own_origin("http://10.0.0.7:4200", "10.0.0.7:4200")
    assert not names.is_own_origin("http://10.0.0.8:4200", "10.0.0.7:4200")
