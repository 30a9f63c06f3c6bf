"""A real engine server on a port, as Kubernetes starts it: no path answers without its key, and the pool has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest
import yaml

from stages.hardware.compute_type import cpu_flags
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import GroupSamples, Prompt, ReadyEngine
from stages.sampling.completions import GENERATE_PATH
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.counts import COUNTS_PATH
from stages.sampling.endpoint import Endpoint
from stages.sampling.engine import Engine
from stages.sampling.replicas.call import Answer, Call
from stages.sampling.replicas.process import WITHOUT_NETWORK_AND_STATISTICS
from tests.support.engine_facts import facts
from tests.support.engines import TEXTS
from tests.support.servers import free_port

pytestmark = pytest.mark.long

KEY = "9d4f6a0be21c4c7f8f30c5a1d2e7b684"
MANIFEST = Path(__file__).parents[2] / "deployments" / "kubernetes" / "machines" / "engines.yaml"
ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The executor of Deerstalker's own engines on a CPU."""
DTYPE = "bfloat16" if "amx_bf16" in cpu_flags() else "float32"
"""In bf16 an engine for short prompts on an AMX CPU ends by SIGILL unless its server requests AMX from the kernel."""
CONTROL = {"/collective_rpc", "/update_weight_version", "/reset_prefix_cache", "/weight_checker", "/server_info"}
ROUTE = re.compile(r"Route: (\S+), Methods: (.+)")


@dataclass
class Server:
    """A running server.

    Attributes:
        port: On 127.0.0.1.
        model: The checkpoint that it was started with.
        log: Its output.
    """

    port: int
    model: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[tuple[str, str]]:
        """Method and path of each of the application's routes, as the server lists them at its start."""
        routes = ROUTE.findall(self.log.read_text())
        return [(method, path) for path, methods in routes for method in methods.split(", ")]

    def status(self, method: str, path: str, **headers: str) -> int:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120.0)
        try:
            connection.request(method, path, b"{}", {"Content-Type": "application/json", **headers})
            return connection.getresponse().status
        finally:
            connection.close()


def engine_command(port: int, model: Path) -> list[str]:
    """The manifest's own command, for a small model on a CPU and on 127.0.0.1."""
    stateful_set = list(yaml.safe_load_all(MANIFEST.read_text()))[1]
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    python, *arguments = container["args"]
    assert python == "python"
    variables = {item["name"]: item["valueFrom"] for item in container["env"] if "valueFrom" in item}
    assert variables["POD_INDEX"] == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    assert "--seed=$(POD_INDEX)" in arguments
    of_the_pod = {"--model": str(model), "--host": "127.0.0.1", "--seed": "1"}
    mine = [f"{name}={of_the_pod.get(name, value)}" for name, _, value in (item.partition("=") for item in arguments)]
    plain = [item.removesuffix("=") for item in mine]
    small = [f"--dtype={DTYPE}", "--block-size=32", f"--distributed-executor-backend={ONE_PROCESS}", "--enforce-eager"]
    small += ["--max-model-len=512", "--kv-cache-memory-bytes=100000000", "--max-num-seqs=16"]
    return [sys.executable, *plain, f"--port={port}", *small]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "model").mkdir()
    make_scratch(ScratchModel(layers=1, vocabulary=300, init_std=0.3, tied_embeddings=False), TEXTS, folder / "model")
    port = free_port()
    environment = {
        **os.environ,
        **WITHOUT_NETWORK_AND_STATISTICS,
        "VLLM_API_KEY": KEY,
        "DEERSTALKER_ENGINE_THREADS": "1",
    }
    environment |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    running = Server(port, folder / "model", folder / "log")
    with running.log.open("wb") as log:
        process = subprocess.Popen(
            engine_command(port, running.model), stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
        )
    try:
        deadline = time.monotonic() + 300.0
        while True:
            assert process.poll() is None, running.log.read_text()[-3000:]
            assert time.monotonic() < deadline
            with suppress(OSError):
                if running.status("GET", "/health") == 200:
                    break
            time.sleep(0.2)
        yield running
    finally:
        process.terminate()
        process.wait(300)


def test_no_path_but_health_answers_without_the_key(server: Server) -> None:
    routes = server.routes()
    assert {path for _, path in routes} >= CONTROL | {"/v1/models", "/health", "/invocations"}
    routes += [
        ("POST", GENERATE_PATH),
        ("GET", COUNTS_PATH),
        ("GET", "/metrics"),
        ("GET", "/nothing/here"),
        ("POST", "//collective_rpc"),
        ("POST", "/collective_rpc/"),
    ]
    routes += [("OPTIONS", path) for _, path in routes]
    routes += [("POST", "/health"), ("GET", "/health/"), ("GET", "/health/../server_info"), ("GET", "/%68ealth/x")]
    closed = [
        (method, path) for method, path in routes if (method, path) not in {("GET", "/health"), ("HEAD", "/health")}
    ]
    assert len(closed) > 60
    assert {route: status for route in closed if (status := server.status(*route)) != 401} == {}
    for wrong in ("Bearer", f"Bearer {KEY}0", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer ", "Bearer sk-é"):
        assert server.status("POST", "/collective_rpc", Authorization=wrong) == 401
    assert server.status("GET", "/server_info", Authorization=f"Bearer {KEY}") == 200
    assert server.status("GET", "/health") == 200
    assert KEY not in server.log.read_text()


def test_the_pool_samples_from_it_with_the_key_of_a_variable(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_FROM_A_SECRET", KEY)
    hardware = EngineHardware(external_urls=(server.url,), api_key_env="KEY_FROM_A_SECRET")
    groups: list[GroupSamples] = []
    with Engine(hardware, tmp_path) as pool:
        pool.ensure(server.model, "named by the flow")
        prompts = [Prompt(f"p{number}", ChatTokenizer(server.model).prompt_token_ids(TEXTS[0])) for number in range(4)]
        pool.sample_groups(prompts, SamplingConfig(samples_per_prompt=2, max_tokens=8), groups.append)
        assert facts(pool).process_ids == []
    assert sorted(group.prompt_id for group in groups) == ["p0", "p1", "p2", "p3"]
    assert {group.weights_digest for group in groups} == {"named by the flow"}


def test_its_log_probabilities_are_those_of_what_it_sampled_from(server: Server, tmp_path: Path) -> None:
    """With a single token to choose from, each has the log-probability 0; vLLM's default is those before `top_k`."""
    asked = Prompt("p", ChatTokenizer(server.model).prompt_token_ids(TEXTS[0]))
    config = SamplingConfig(samples_per_prompt=2, max_tokens=8, top_k=1)
    source = ReadyEngine(Endpoint(server.url, KEY), "", "0", 0)
    with Call([asked], config, (), engines=1, max_num_seqs=1, stall_timeout_s=60.0) as call:
        call.join(source)
        sampled = call.next(120.0)
        assert isinstance(sampled, Answer)
        assert not np.concatenate([one.logprobs for one in sampled.completions(config)]).any()


@pytest.mark.parametrize(
    ("key", "arguments", "message"),
    [
        ("", (), "the environment variable VLLM_API_KEY is not set"),
        ("two words", (), "VLLM_API_KEY holds a space"),
        (KEY, ("--api-key", KEY), "--api-key: a key among the arguments"),
        (KEY, (f"--api_key={KEY}",), "--api-key: a key among the arguments"),
    ],
)
def test_a_server_without_a_usable_key_does_not_start(
    key: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    environment |= {"VLLM_API_KEY": key} if key else {}
    command = [sys.executable, "-m", "stages.sampling.server", "--model", "nowhere", *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert KEY not in done.stderr and "Traceback" not in done.stderr
