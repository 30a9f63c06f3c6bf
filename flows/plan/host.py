"""Memory of the host: the programs, and the engines that start on it."""

from flows.config.model_size import ModelSize
from flows.plan.memory import BYTES
from stages.hardware.compute_type import ComputeType
from stages.sampling.config import EngineHardware
from stages.sampling.replicas import placement
from stages.sampling.replicas.threads import SMALL_MODEL_BYTES

_PROGRAM_BYTES = int(3.5 * (1 << 30))
"""Memory of flow, Prefect's server, one engine and trainer without a model, measured with `answers_only`."""
_ENGINE_PROGRAM_BYTES = 1 << 30
"""Memory of each further engine without a model: with a tiny model, two took 1066 MiB more than one (PSS)."""
_CHECKPOINT_BYTES = 2
"""Bytes of a weight in a checkpoint."""


def program_bytes(replicas: int) -> float:
    """Returns the memory of all programs on this machine without models; `replicas` of them are engines."""
    return _PROGRAM_BYTES + (replicas - 1) * _ENGINE_PROGRAM_BYTES


def engine_bytes(engine: EngineHardware, size: ModelSize, compute: ComputeType, replicas: int, *, cuda: bool) -> float:
    """Returns the memory of all engines on this machine in bytes, without the programs; 0 if all run elsewhere.

    Each engine holds the weights in its compute type, and a KV cache if the profile sets its size. On a CPU the engines
    divide the KV cache among them.
    """
    assert size.parameters is not None
    if replicas == 0:
        return 0.0
    caches = (engine.kv_cache_gib or 0.0) * (replicas if cuda else 1)
    return replicas * BYTES[compute] * size.parameters + caches * (1 << 30)


def replica_count(engine: EngineHardware, size: ModelSize, cores: int, gpus: int, *, cuda: bool) -> int:
    """Returns the number of engines that start on a machine."""
    assert size.parameters is not None
    small = _CHECKPOINT_BYTES * size.parameters < SMALL_MODEL_BYTES
    if engine.elsewhere:
        return 0
    return placement.replica_count(engine, small=small, cores=cores, gpus=gpus, on_cpu=not cuda)
