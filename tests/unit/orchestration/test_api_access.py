"""Addresses of Prefect APIs and their passwords: what is refused, what is shown, who can read it."""

import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.local.input_files import LARGEST_DOCUMENT
from flows.orchestration.server import api_access
from flows.orchestration.server.api_access import (
    masked,
    new_auth_string,
    parse_server,
    private,
    private_folder,
    read_auth_string,
    wait_for_external_server,
    write_private,
)
from flows.orchestration.server.up_server import LocalServer, parse_external_server
from tests.support.servers import free_port
from tests.support.serving import Replies, http_server


@pytest.mark.parametrize(
    ("text", "url", "auth"),
    [
        ("http://127.0.0.1:4200/api", "http://127.0.0.1:4200/api", None),
        ("https://prefect.internal/api/", "https://prefect.internal/api", None),
        ("http://user:pw@host:4200/api", "http://host:4200/api", "user:pw"),
        ("http://user:p%40w%2Fx@host/api", "http://host/api", "user:p@w/x"),
        ("http://[::1]:4200/api", "http://[::1]:4200/api", None),
    ],
)
def test_a_server_is_its_address_and_its_password(text: str, url: str, auth: str | None) -> None:
    assert parse_server(text) == (url, auth)


@pytest.mark.parametrize(
    "text",
    [
        "garbage", "", "127.0.0.1:4200", "me-as:secret@host:4200/api", "ftp://host/api", "http://", "http:///api",
        "http://me-as:secret@/api", "http://me-as:secret@host:port/api", "http://me-as:secret@host:99999/api",
        "http://me-as:secret@host/api?x=1", "http://me-as:sec\nret@host/api", "http://me-as:secret%0aX@host/api",
        "http://me-as:secret/@host/secret", "http://\ud800/api", "http://host/api#x",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_and_its_password_not_shown(text: str) -> None:
    with pytest.raises(BadInputError, match=r"--server .*expected http://HOST:PORT/api; name the API") as refused:
        parse_server(text)
    assert str(refused.value).isprintable() or "\ud800" in text
    assert not any(part in str(refused.value) for part in ("me-as", "secret@", ":secret"))


def test_options_of_a_local_server_are_refused_beside_an_address() -> None:
    """Only --auth has a counterpart on the machine of the other server."""
    url = "http://host/api"
    with pytest.raises(BadInputError, match=r"--auth: .*on the machine of that server set PREFECT_SERVER_API_AUTH_STR"):
        parse_external_server(url, LocalServer(None, None, auth=True))
    with pytest.raises(BadInputError, match=r"--host 0\.0\.0\.0: .*; leave it out$"):
        parse_external_server(url, LocalServer("0.0.0.0", None, auth=False))
    with pytest.raises(BadInputError, match=r"--port 5000: .*; leave it out$"):
        parse_external_server(url, LocalServer(None, 5000, auth=False))


def test_what_is_shown_of_an_address_holds_no_password() -> None:
    assert masked("http://user:p@ss/w:rd@host:4200/api") == "http://***@host:4200/api"
    assert masked("user:pw@host") == "***@host"
    assert masked("http://host/api") == "http://host/api"


def _answers(status: int, body: str = "true", version_status: int = 200) -> AbstractContextManager[str]:
    class Handler(Replies):
        def do_GET(self) -> None:
            self.reply(body.encode(), status if self.path.endswith("/health") else version_status)

    return http_server(Handler)


@pytest.mark.parametrize(
    ("status", "body", "version_status", "words"),
    [
        (200, "<!doctype html>", 200, "is not a Prefect API (HTTP 200)"),
        (404, "true", 200, "is not a Prefect API (HTTP 404)"),
        (500, "true", 200, "is not a Prefect API (HTTP 500)"),
        (401, "true", 200, "refuses the request (HTTP 401)"),
        (200, "true", 401, "refuses the request (HTTP 401); expected its auth string; set PREFECT_API_AUTH_STRING"),
    ],
)
def test_what_answers_otherwise_than_a_prefect_api_is_named_at_once(
    status: int, body: str, version_status: int, words: str
) -> None:
    with _answers(status, body, version_status) as url, pytest.raises(BadInputError) as refused:
        wait_for_external_server(url, "user:pw")
    assert f"--server {url}: " in str(refused.value) and words in str(refused.value)


def test_an_answer_is_read_up_to_the_largest_size() -> None:
    whole, expected = " " * LARGEST_DOCUMENT + "true", pytest.raises(BadInputError, match="but is not a Prefect API")
    with _answers(200, whole) as url, expected:
        wait_for_external_server(url, None)


def test_a_server_that_answers_is_taken() -> None:
    with _answers(200) as url:
        wait_for_external_server(url, None)


def test_a_name_that_nobody_has_and_a_port_that_nobody_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_access, "EXTERNAL_TIMEOUT_S", 0.5)
    for name in ("nobody.invalid", "x" * 300):
        with pytest.raises(BadInputError, match="there is no host"):
            wait_for_external_server(f"http://{name}/api", None)
    with pytest.raises(DeerstalkerError, match="no answer within"):
        wait_for_external_server(f"http://127.0.0.1:{free_port()}/api", None)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_are_their_owners_whatever_they_were_before(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        path = tmp_path / "secret"
        path.touch(0o666)
        write_private(path, "a:b\n")
        log = tmp_path / "log"
        log.touch(0o666)
        with open(log, "ab", opener=private) as file:
            file.write(b"x")
        private_folder(tmp_path / "above" / "home")
    finally:
        os.umask(previous)
    assert (_mode(path), _mode(log), _mode(tmp_path / "above" / "home")) == (0o600, 0o600, 0o700)
    assert read_auth_string(path) == "a:b"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["above", "log", "secret"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / "link").symlink_to(other)
    write_private(tmp_path / "link", "mine")
    assert other.read_text() == "theirs" and (tmp_path / "link").read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"\xff", b"a\x1bb"])
def test_a_damaged_auth_string_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "auth-string").write_bytes(content)
    with pytest.raises(BadInputError, match="auth-string: "):
        read_auth_string(tmp_path / "auth-string")


def test_auth_strings_differ_and_cannot_be_guessed() -> None:
    made = {new_auth_string() for _ in range(10)}
    assert len(made) == 10 and all(len(one.partition(":")[2]) == 48 for one in made)
