"""Two real engines side by side: weights, seeds, losses, and one that runs elsewhere."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from stages.models.from_scratch import ScratchModel, make_scratch
from stages.sampling.client import GroupSamples, Prompt, ReadyEngine
from stages.sampling.config import EngineHardware, SamplingConfig
from stages.sampling.counts import COUNTS_PATH
from stages.sampling.endpoint import Endpoint
from stages.sampling.engine import Engine
from stages.sampling.replicas.replica import Replica
from tests.support.engine_facts import facts
from tests.support.engines import TEXTS, core_of, mean_gap, prompts
from tests.support.processes import in_session
from tests.support.waiting import wait_until

HARDWARE = EngineHardware(max_num_seqs=32, kv_cache_gib=0.1, max_model_len=512, threads=1, replicas=2, seed=7)
SHORT = SamplingConfig(samples_per_prompt=4, max_tokens=8)
ENOUGH = 400
"""Prompts of a call that no engine finishes alone before the other has joined, even if this process waits for a core
for a second (one engine samples 40 of them in 0.3 s)."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two small models of one shape, whose output heads are their own: an engine elsewhere on a CPU takes no others.

    They differ in their norms, too, which a CPU engine holds as they stand in the file.
    """
    folders: dict[str, Path] = {}
    for seed, name in enumerate("ab"):
        folders[name] = tmp_path_factory.mktemp(name)
        shape = ScratchModel(layers=2, vocabulary=300, init_std=0.3, tied_embeddings=False, seed=seed)
        make_scratch(shape, TEXTS, folders[name])
    file = folders["b"] / "model.safetensors"
    tensors = load_file(file)
    save_file({name: value * (1.25 if "norm" in name else 1.0) for name, value in tensors.items()}, file)
    return folders


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Engine]:
    with Engine(HARDWARE, tmp_path_factory.mktemp("engine")) as running:
        yield running


def sources_of(engine: Engine, count: int) -> list[ReadyEngine]:
    """The engines that are ready, once there are so many."""
    deadline = time.monotonic() + 400.0
    while len(sources := facts(engine).sources) < count:
        assert time.monotonic() < deadline, "the engines do not come"
        time.sleep(0.1)
    return sources


def replicas(engine: Engine) -> list[Replica]:
    return engine._replicas  # pyright: ignore[reportPrivateUsage]


@pytest.mark.long
def test_weights_are_exchanged_in_every_engine_and_each_draws_by_its_own_seed(
    engine: Engine, models: dict[str, Path]
) -> None:
    engine.ensure(models["a"], "a")
    sources_of(engine, 2)
    starts, reloads = facts(engine).starts, facts(engine).reloads
    engine.ensure(models["b"], "b")
    assert {source.weights_digest for source in sources_of(engine, 2)} == {"b"}
    groups: list[GroupSamples] = []
    engine.sample_groups(prompts(ENOUGH), SHORT, groups.append)
    assert (facts(engine).starts, facts(engine).reloads, facts(engine).refusals) == (starts, reloads + 2, [])
    assert {group.engine_seed for group in groups} == {7, 8}
    for seed in (7, 8):
        assert mean_gap(models["b"], [group for group in groups if group.engine_seed == seed][:4]) < 0.15
    alike = [Prompt(f"p{number}", prompts(1)[0].token_ids) for number in range(80)]  # a quarter do not end early
    groups.clear()
    engine.sample_groups(alike, SHORT, groups.append)
    long = [tuple(c.token_ids) for group in groups for c in group.completions if len(c.token_ids) == SHORT.max_tokens]
    assert len(set(long)) == len(long) > 16, "no engine repeats another one's draws"


@dataclasses.dataclass(frozen=True)
class Forgetful(Endpoint):
    """An engine that is told of new weights and loads other ones."""

    other: Path = Path()

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float) -> Any:
        if path == "/collective_rpc" and isinstance(body, dict):
            body = body | {"kwargs": {"weights_path": str(self.other)}}
        return super().call(method, path, body, timeout_s=timeout_s)


@pytest.mark.long
def test_an_engine_that_holds_wrong_tensors_is_started_again_and_the_other_is_not(
    engine: Engine, models: dict[str, Path]
) -> None:
    engine.ensure(models["a"], "a")
    sources_of(engine, 2)
    starts, (right, wrong) = facts(engine).starts, replicas(engine)
    process, survivor = wrong._process, right.process_id  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    process.endpoint = Forgetful(process.endpoint.address, process.endpoint.api_key, other=models["a"])
    engine.ensure(models["b"], "b")
    assert {source.weights_digest for source in sources_of(engine, 2)} == {"b"}
    (refusal,) = facts(engine).refusals
    assert "tensors are not the folder's" in refusal
    assert (facts(engine).starts, right.process_id) == (starts + 1, survivor)
    groups: list[GroupSamples] = []
    engine.sample_groups(prompts(ENOUGH), SHORT, groups.append)
    assert {group.engine_seed for group in groups} == {7, 8}
    assert (facts(engine).starts, facts(engine).refusals) == (starts + 1, [refusal]), "neither was lost meanwhile"
    assert mean_gap(models["b"], [group for group in groups if group.engine_seed == 8][:4]) < 0.15


@pytest.mark.long
def test_the_groups_of_a_killed_engine_are_sampled_by_the_other_while_it_restarts(
    engine: Engine, models: dict[str, Path]
) -> None:
    engine.ensure(models["a"], "a")
    sources_of(engine, 2)
    starts, (survivor, victim) = facts(engine).starts, facts(engine).process_ids
    core = core_of(victim)
    delivered, meanwhile = list[GroupSamples](), list[int]()

    def deliver(group: GroupSamples) -> None:
        delivered.append(group)
        if len(delivered) > 3 and facts(engine).starts == starts:
            meanwhile.append(group.engine_seed)
        if len(delivered) == 3:
            os.kill(core, signal.SIGKILL)

    engine.sample_groups(prompts(48), SamplingConfig(samples_per_prompt=16, max_tokens=200), deliver)
    assert Counter(group.prompt_id for group in delivered) == Counter(prompt.prompt_id for prompt in prompts(48))
    assert Counter(meanwhile)[7] > 3, "sampled by the other before the killed one was back"
    assert {source.seed for source in sources_of(engine, 2)} == {7, 8}, "it is back, in this call or after it"
    assert facts(engine).starts == starts + 1
    assert survivor in facts(engine).process_ids and victim not in facts(engine).process_ids
    wait_until(lambda: not in_session(victim), 120.0)


@contextmanager
def forwarded(address: Path) -> Generator[str]:
    """The URL of a TCP port that leads to a Unix socket."""

    def copy(reader: socket.socket, writer: socket.socket) -> None:
        with suppress(OSError):
            while data := reader.recv(65536):
                writer.sendall(data)
            writer.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, far = server.accept()[0], socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                far.connect(str(address))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.release
def test_an_engine_elsewhere_samples_beside_the_one_that_the_profile_asks_for(
    engine: Engine, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.ensure(models["a"], "a")
    elsewhere = sources_of(engine, 2)[0].endpoint
    assert isinstance(elsewhere.address, Path)
    monkeypatch.setenv("KEY_OF_THE_OTHER", elsewhere.api_key)
    with forwarded(elsewhere.address) as url:
        elsewhere_too = {"external_urls": (url,), "api_key_env": "KEY_OF_THE_OTHER"}
        beside = HARDWARE.model_copy(update={**elsewhere_too, "replicas": 1, "seed": 100})
        with Engine(beside, tmp_path / "beside") as pool:
            pool.ensure(models["b"], "b")
            near, far = sorted(sources_of(pool, 2), key=lambda source: str(source.endpoint.address))
            assert (len(facts(pool).process_ids), {near.weights_digest, far.weights_digest}) == (1, {"b"})
            groups: list[GroupSamples] = []
            pool.sample_groups(prompts(ENOUGH), SHORT, groups.append)
            assert len(groups) == ENOUGH
            counts = [source.endpoint.call("GET", COUNTS_PATH, timeout_s=60.0) for source in (near, far)]
            assert min(count["tokens"] for count in counts) > 0
        instead = beside.model_copy(update={"replicas": "auto"})
        with Engine(instead, tmp_path / "instead") as alone:
            alone.ensure(models["a"], "a again")
            groups.clear()
            alone.sample_groups(prompts(4), SHORT, groups.append)
            assert (facts(alone).process_ids, {group.weights_digest for group in groups}) == ([], {"a again"})
            assert mean_gap(models["a"], groups) < 0.15
