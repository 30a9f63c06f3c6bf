"""What `deerstalker doctor` says of Prefect's server."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.cli.doctor import page_line
from flows.doctor.checks import prefect_check
from flows.doctor.facts import PrefectFacts, ask_prefect, prefect_facts
from tests.support.doctor import says
from tests.support.servers import free_port
from tests.support.serving import Replies, http_server


@contextmanager
def _api(version: str, status: int = 200, delay_s: float = 0.0) -> Generator[str]:
    """A server that answers every request alike, and says late that it is well."""

    class Handler(Replies):
        def do_GET(self) -> None:
            time.sleep(delay_s if "health" in self.path else 0.0)
            self.reply(version if "version" in self.path else True, status)

    with http_server(Handler) as url:
        yield f"{url}/api"


def test_prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    says(prefect_check(prefect_facts(tmp_path)), "ok", "each command starts its own (3.")
    says(prefect_check(PrefectFacts("3.7.7", error="a damaged record")), "problem", "damaged", "remove the record")
    with _api("3.7.7") as url:
        monkeypatch.setenv("PREFECT_API_URL", url)
        says(prefect_check(prefect_facts(tmp_path)), "ok", f"{url}, named by PREFECT_API_URL; server 3.7.7")
    with _api("3.7.7", delay_s=2.0) as url:  # as on a busy machine
        says(prefect_check(ask_prefect("3.7.7", url, "PREFECT_API_URL")), "ok", "server 3.7.7")
    with _api("3.4.1") as url:
        says(prefect_check(ask_prefect("3.7.7", url, "PREFECT_API_URL")), "warning", "3.4.1", "update the server")
    with _api("", 401) as url:
        says(prefect_check(ask_prefect("3.7.7", url, "PREFECT_API_URL")), "problem", "PREFECT_API_AUTH_STRING")
    with _api("", 404) as url:
        line = prefect_check(ask_prefect("3.7.7", url, "PREFECT_API_URL"))
        says(line, "problem", "is not a Prefect API (HTTP 404)", "name another")
        assert line.figures["server"] is None, "docs/reference/json.md: null where it is not known"
    open_to_all = PrefectFacts("3.7.7", "http://a/api", "`deerstalker up`", "3.7.7", others=("ann", "bob", "cy", "dee"))
    says(prefect_check(open_to_all), "warning", "no password", "(ann, bob, cy and 1 more)", "`deerstalker up --auth`")
    silent = f"http://user:secret@127.0.0.1:{free_port()}/api"
    line = prefect_check(ask_prefect("3.7.7", silent, "PREFECT_API_URL"))
    says(line, "problem", "no answer", "unset PREFECT_API_URL")
    assert "secret" not in page_line(line)
    says(prefect_check(ask_prefect("3.7.7", silent, "`deerstalker up`")), "problem", "call `deerstalker up` again")
    line = prefect_check(ask_prefect("3.7.7", "http://user:secret@a:b/api", "PREFECT_API_URL"))
    says(line, "problem", "http://a:b/api, named by PREFECT_API_URL", "InvalidURL", "name another")
    assert "secret" not in page_line(line)
