"""What an engine is asked when it gives its memory to the trainer, and who may set that it does."""

import json
from collections.abc import Iterator
from pathlib import Path
from socketserver import UnixStreamServer

import pytest
from pydantic import ValidationError

from artifacts.errors import BadInputError
from stages.sampling.config import EngineHardware
from stages.sampling.endpoint import Endpoint
from stages.sampling.replicas import weight_exchange
from stages.sampling.replicas.placement import check
from stages.sampling.replicas.process import engine_arguments
from tests.support.serving import Replies, serving

REQUESTS: list[str] = []


class Handler(Replies):
    """Notes each request, with the method of a remote call, and agrees."""

    def do_POST(self) -> None:
        body = self.body()
        REQUESTS.append(self.path + (f" {json.loads(body)['method']}" if "rpc" in self.path else ""))
        self.reply({"success": True})


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    REQUESTS.clear()
    path = tmp_path / "socket"
    with serving(UnixStreamServer(str(path), Handler)):
        yield Endpoint(path, "key")


def test_an_engine_that_sleeps_gets_its_weights_before_its_cache(endpoint: Endpoint) -> None:
    weight_exchange.sleep(endpoint)
    weight_exchange.load(endpoint, Path("/model"), asleep=True)
    assert REQUESTS == [
        "/sleep?level=2", "/wake_up?tags=weights", "/collective_rpc reload_weights", "/wake_up?tags=kv_cache",
        "/reset_prefix_cache",
    ]  # fmt: skip
    REQUESTS.clear()
    weight_exchange.load(endpoint, Path("/model"))
    assert REQUESTS == ["/collective_rpc reload_weights", "/reset_prefix_cache"]


def test_only_an_engine_that_takes_turns_can_sleep() -> None:
    for turns in (False, True):
        arguments = engine_arguments(EngineHardware(takes_turns=turns), Path("model"), Path("engine.sock"))
        assert ("--enable-sleep-mode" in arguments) is turns


def test_turns_are_refused_where_they_mean_nothing() -> None:
    with pytest.raises(BadInputError, match=r"engine.takes_turns: true, with vLLM's build for CPUs"):
        check(EngineHardware(takes_turns=True))
    with pytest.raises(ValidationError, match="those of external_urls have their own"):
        EngineHardware(takes_turns=True, external_urls=("http://engine:8000",))
