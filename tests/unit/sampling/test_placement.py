"""How many engines run side by side, and what each has of the machine."""

import importlib.metadata
import os
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from stages.processes import cgroups
from stages.processes.process_pool import Pool
from stages.sampling.config import EngineHardware
from stages.sampling.replicas.placement import check, places
from stages.sampling.replicas.threads import SMALL_MODEL_BYTES, cpu_threads


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    return tmp_path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(SMALL_MODEL_BYTES)
    return folder


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs, one of them named otherwise, and the build of vLLM for them."""

    def version(name: str) -> str:
        if name == "vllm":
            return "0.32.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,GPU-7f,5")


@pytest.mark.usefixtures("cores")
def test_a_small_model_has_an_engine_a_core_on_a_cpu_and_a_large_one_has_one(model: Path, large: Path) -> None:
    hardware = EngineHardware(kv_cache_gib=3.0, memory_share=0.6, seed=10)
    small = places(hardware, model)
    assert [place.hardware.seed for place in small] == [10, 11, 12, 13, 14, 15]
    assert {(place.hardware.kv_cache_gib, place.hardware.replicas) for place in small} == {(0.5, 6)}
    assert [cpu_threads(place.hardware, model) for place in small] == [1] * 6
    assert len(places(hardware.model_copy(update={"threads": 2}), model)) == 3
    (alone,) = places(hardware, large)
    assert (alone.hardware.kv_cache_gib, cpu_threads(alone.hardware, large)) == (3.0, 6)
    pair = places(hardware.model_copy(update={"replicas": 2, "kv_cache_gib": None}), large)
    assert [cpu_threads(place.hardware, large) for place in pair] == [3, 3]
    assert {(place.hardware.kv_cache_gib, place.hardware.memory_share) for place in pair} == {(None, 0.3)}


@pytest.mark.usefixtures("cores")
def test_the_cpu_limit_of_a_container_bounds_engines_and_processes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("proc/self/cgroup", "0::/\n"), ("groups/cpu.max", "250000 100000\n")):
        (path := tmp_path / name).parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "groups")
    assert len(places(EngineHardware(), model)) == 3
    assert Pool(None).workers == 3


@pytest.mark.usefixtures("gpus")
def test_engines_on_gpus_have_their_own_devices_and_their_own_cache(model: Path) -> None:
    pairs = places(EngineHardware(tensor_parallel_size=2, kv_cache_gib=4.0), model)
    assert [place.devices for place in pairs] == [("0", "2"), ("GPU-7f", "5")]
    assert [place.hardware.kv_cache_gib for place in pairs] == [4.0, 4.0]
    assert [place.devices for place in places(EngineHardware(replicas=2), model)] == [("0",), ("2",)]
    assert [place.devices for place in places(EngineHardware(replicas=1), model)] == [()], "as vLLM chooses"
    spread = EngineHardware(extra_arguments=("--pipeline-parallel-size", "2"))
    assert len(places(spread, model)) == 1


def test_engines_that_run_elsewhere_leave_none_here_unless_the_profile_gives_a_number(model: Path) -> None:
    elsewhere = EngineHardware(external_urls=("http://engine-0:8000",))
    assert places(elsewhere, model) == []
    assert len(places(elsewhere.model_copy(update={"replicas": 1}), model)) == 1


@pytest.mark.usefixtures("cores")
def test_more_engines_than_cores_are_refused_with_what_is_possible() -> None:
    check(EngineHardware(replicas=6))
    check(EngineHardware(replicas=1, threads=16))
    with pytest.raises(BadInputError) as refused:
        check(EngineHardware(replicas=4, threads=2))
    assert str(refused.value) == (
        "engine.replicas: 4, with 6 CPU cores and 2 for each replica; expected at most 3; "
        'write engine.replicas = 3, or "auto", in the profile'
    )


@pytest.mark.usefixtures("gpus")
def test_more_engines_than_gpus_are_refused_with_what_is_possible() -> None:
    check(EngineHardware(replicas=4))
    with pytest.raises(BadInputError, match="4 GPUs and 2 for each replica; expected at most 2; write"):
        check(EngineHardware(replicas=3, tensor_parallel_size=2))
