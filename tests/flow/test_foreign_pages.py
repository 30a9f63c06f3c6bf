"""Pages of other origins in a real browser: they get nothing from our Prefect server and change nothing.

Its own pages work, with and without a password.
"""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.browser import Browser, find_browser
from tests.support.prefect_server import own_server, prefect_api
from tests.support.serving import Replies, http_server

PROGRAM = find_browser()
FOREIGN, REBOUND = "foreign.example", "rebound.example"
PASSWORD = "deerstalker:a-password-for-this-test"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]

ATTACK = """
(async () => {
  const seen = {};
  const attempt = async (name, request) => {
    try { seen[name] = await request() } catch (error) { seen[name] = 'refused' }
  };
  const read = async answer => answer.ok ? await answer.text() : 'refused';
  const post = (mode, type) => fetch(API + '/flows/', {
    method: 'POST', mode, headers: type ? {'content-type': type} : {},
    body: new Blob([JSON.stringify({name: 'of a foreign page, ' + mode + ' ' + type})]),
  });
  await attempt('get', async () => read(await fetch(API + '/admin/version')));
  for (const type of ['application/json', 'text/plain', '']) {
    await attempt('post ' + type, async () => read(await post('cors', type)));
  }
  await attempt('blind post', async () => { await post('no-cors', 'text/plain'); return 'unseen' });
  await attempt('blind post without type', async () => { await post('no-cors', ''); return 'unseen' });
  await attempt('picture', () => new Promise((done, failed) => {
    const picture = new Image();
    picture.onload = () => done('shown'); picture.onerror = failed; picture.src = API + '/../ico/favicon.ico';
  }));
  await attempt('socket', () => new Promise((done, failed) => {
    const socket = new WebSocket(API.replace('http', 'ws') + '/events/in');
    socket.onopen = () => done('open'); socket.onerror = failed;
  }));
  return seen;
})()
"""
"""What a page tries at the API whose address is API; each attempt's name, and how it went."""


@pytest.fixture
def browser(tmp_path: Path) -> Generator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path / "browser", names=(FOREIGN, REBOUND, "localhost")) as one:
        yield one


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with own_server(tmp_path_factory.mktemp("server")) as url:
        prefect_api(url, "POST", "/flows/", {"name": "a-flow-to-see"})
        yield url


class _ForeignPage(Replies):
    """The one page of a site."""

    def do_GET(self) -> None:
        self.reply(b"<title>foreign</title><p>a foreign page", Content_Type="text/html")


def _attack(browser: Browser, api: str) -> dict[str, str]:
    return browser.wait_for_value(ATTACK.replace("API", json.dumps(api)))


def _flows(api: str) -> list[str]:
    return [flow["name"] for flow in prefect_api(api, "POST", "/flows/filter", {})]


@pytest.mark.parametrize("host", [FOREIGN, "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_gets_nothing_and_creates_nothing(host: str, api: str, browser: Browser) -> None:
    with http_server(_ForeignPage) as site:
        browser.open(site.replace("127.0.0.1", host), "a foreign page")
        seen = _attack(browser, api)
        assert seen.pop("blind post") == seen.pop("blind post without type") == "unseen"
        assert len(seen) == 6 and set(seen.values()) == {"refused"}, seen
        assert _flows(api) == ["a-flow-to-see"]


def test_a_name_that_is_pointed_at_this_machine_gets_nothing_and_creates_nothing(api: str, browser: Browser) -> None:
    rebound = api.replace("127.0.0.1", REBOUND)
    browser.open(f"{rebound}/version", "does not accept this Host header")
    seen = _attack(browser, rebound)
    assert seen.pop("blind post") == seen.pop("blind post without type") == "unseen"
    assert len(seen) == 6 and set(seen.values()) == {"refused"}, seen
    assert _flows(api) == ["a-flow-to-see"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_own_pages_work_under_both_names(host: str, api: str, browser: Browser) -> None:
    browser.open(f"{api.removesuffix('/api').replace('127.0.0.1', host)}/flows", "a-flow-to-see")


@pytest.mark.parametrize("v2", ["false", "true"])
def test_both_interfaces_ask_for_the_password_and_work_with_it(v2: str, tmp_path: Path, browser: Browser) -> None:
    with own_server(tmp_path / "server", auth=PASSWORD, PREFECT_SERVER_UI_V2_ENABLED=v2) as api:
        prefect_api(api, "POST", "/flows/", {"name": "a-flow-to-see"}, PASSWORD)
        pages = api.removesuffix("/api")
        assert "a-flow-to-see" not in browser.open(f"{pages}/flows", "login")
        browser.run(TYPE_PASSWORD.replace("PASSWORD", json.dumps(PASSWORD)))
        browser.press("Login")
        browser.wait_until(
            lambda: browser.run("document.querySelector('input[type=password]') === null"), "the end of it"
        )
        browser.open(f"{pages}/flows", "a-flow-to-see")


TYPE_PASSWORD = """
(() => {
  const field = document.querySelector('input[type=password]');
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field, PASSWORD);
  field.dispatchEvent(new Event('input', {bubbles: true}));
})()
"""
"""Types into the field as a user does, so that the page notices."""
