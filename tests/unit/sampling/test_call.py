"""The threads and connections of a call."""

import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.sampling.client import Prompt, ReadyEngine
from stages.sampling.completions import Completion, Completions, to_bytes
from stages.sampling.config import SamplingConfig
from stages.sampling.endpoint import Endpoint
from stages.sampling.replicas import call as call_module
from stages.sampling.replicas.call import Answer, Call, EngineLoss
from tests.support.serving import Replies, http_server, serving
from tests.support.waiting import wait_until


class Counted(threading.Condition):
    """A condition that counts its waits, begun and ended."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self.begun = self.ended = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Waits as its base class does."""
        self.begun += 1
        woken = super().wait(timeout)
        self.ended += 1
        return woken


def test_a_further_turn_wakes_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When all threads woke for each turn, `sample` of the game in docs/episodes.md took 7.2 s instead of 3.0 s."""
    made: list[Counted] = []

    def condition(lock: Any = None) -> Counted:
        made.append(Counted(lock))
        return made[-1]

    monkeypatch.setattr(threading, "Condition", condition)
    config, prompts = SamplingConfig(samples_per_prompt=16), [Prompt(str(i), [1]) for i in range(4)]
    with Call(prompts, config, (), engines=1, max_num_seqs=64, stall_timeout_s=60.0, turns=True) as call:
        call.join(ReadyEngine(Endpoint(tmp_path / "no-engine.sock"), "w", "0", 0))
        for _ in prompts:
            assert isinstance(call.next(120.0), EngineLoss)
        wait_until(lambda: max(one.begun - one.ended for one in made) >= 60, 120.0, poll_s=0.01)
        waited_for = max(made, key=lambda one: one.begun - one.ended)
        before = waited_for.ended
        call.put_first([Prompt("again", [1])])
        assert isinstance(call.next(120.0), EngineLoss)
        time.sleep(0.2)  # for those that wake in vain
        assert waited_for.ended - before == 1


class ClosesIdleConnections(Replies):
    """Answers with one completion, and closes a connection 0.3 s after its last request, as vLLM's server after 5 s."""

    protocol_version, timeout = "HTTP/1.1", 0.3

    def do_POST(self) -> None:
        self.body()
        completion = Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), "stop")
        self.reply(to_bytes(Completions([completion], ["0"])))


def test_a_prompt_after_a_pause_loses_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the next turn of an episode whose tool takes long."""
    monkeypatch.setattr(call_module, "REUSED_WITHIN_S", 0.1)
    config = SamplingConfig(samples_per_prompt=1)
    with http_server(ClosesIdleConnections) as url:
        engine = ReadyEngine(Endpoint(url), "w", "0", 0)
        with Call([Prompt("0", [1])], config, (), engines=1, max_num_seqs=1, stall_timeout_s=60.0, turns=True) as call:
            call.join(engine)
            for turn in range(3):
                assert isinstance(call.next(120.0), Answer), turn
                time.sleep(0.6)
                call.put_first([Prompt(str(turn + 1), [1])])
            assert isinstance(call.next(120.0), Answer)


class DripsCounts(ClosesIdleConnections):
    """Sends the counters a space at a time without end, and completions never."""

    timeout = 600.0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.05)

    def do_POST(self) -> None:
        with suppress(OSError):
            self.rfile.read()  # until the client closes the connection


def test_an_engine_whose_counters_never_arrive_is_lost() -> None:
    """Neither a short timeout of the request, nor one of each address of its name, bounds how long a look takes."""
    config = SamplingConfig(samples_per_prompt=1)
    with http_server(DripsCounts) as url:
        engine = ReadyEngine(Endpoint(url), "w", "0", 0)
        with Call([Prompt("0", [1])], config, (), engines=1, max_num_seqs=1, stall_timeout_s=1.0) as call:
            call.join(engine)
            loss = call.next(60.0)
            assert isinstance(loss, EngineLoss) and loss.reason.startswith("no new token for ")


def test_the_end_of_a_call_does_not_wait_for_each_request_to_a_silent_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is being opened cannot be closed; each was waited for in turn."""
    monkeypatch.setattr(call_module, "POLL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(call_module, "POLL_S", 0.1)
    config, prompts = SamplingConfig(samples_per_prompt=1), [Prompt(str(i), [1]) for i in range(64)]
    with socket.socket() as silent, socket.socket() as first:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)  # with one connection that nobody accepts, the kernel answers no other
        first.connect(silent.getsockname())
        engine = ReadyEngine(Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}"), "w", "0", 0)
        with Call(prompts, config, (), engines=1, max_num_seqs=64, stall_timeout_s=60.0) as call:
            member = call.join(engine)
            wait_until(lambda: len(member.in_flight) == 64, 120.0, poll_s=0.01)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 10.0


class Together(ThreadingHTTPServer):
    """A server whose answers begin when all requests of a call have come."""

    request_queue_size = 64
    met = threading.Barrier(48)


class AnswersTogether(ClosesIdleConnections):
    """Answers when the other requests have come."""

    timeout = 60.0

    def do_POST(self) -> None:
        Together.met.wait(60.0)
        super().do_POST()


def test_requests_may_need_more_files_than_the_limit_of_a_shell() -> None:
    """With samples of 1, each sequence has a connection: 1,281 for an engine on a GPU, where 1,024 is usual."""
    config, prompts = SamplingConfig(samples_per_prompt=1), [Prompt(str(i), [1]) for i in range(48)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(Together(("127.0.0.1", 0), AnswersTogether)) as server:
        engine = ReadyEngine(Endpoint(f"http://127.0.0.1:{server.server_address[1]}"), "w", "0", 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 40, limits[1]))
        try:
            with Call(prompts, config, (), engines=1, max_num_seqs=64, stall_timeout_s=60.0) as call:
                call.join(engine)
                assert all(isinstance(call.next(120.0), Answer) for _ in prompts)
        finally:
            Together.met.reset()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_hard_limit_that_is_too_low_is_one_line() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from stages.sampling.client import Prompt
from stages.sampling.config import SamplingConfig
from stages.sampling.replicas.call import Call
config, prompts = SamplingConfig(samples_per_prompt=1), [Prompt(str(i), [1]) for i in range(1000)]
for sequences in (64, 256):
    Call(prompts, config, (), engines=1, max_num_seqs=sequences, stall_timeout_s=60.0)
    print(sequences)
"""
    command = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ended.stdout == "64\n"
    line = ended.stderr.splitlines()[-1]
    assert "ulimit -Hn: 400 open files; expected at least 5" in line and line.endswith(
        "for 321 requests at a time; lower engine.max_num_seqs in the profile, or raise the limit"
    )
