"""OpenMP threads of an engine on the CPU."""

from pathlib import Path

from stages.models.tensor_file import weight_bytes
from stages.processes.cgroups import usable_cores
from stages.sampling.config import EngineHardware

SMALL_MODEL_BYTES = 50_000_000
THREADS_VARIABLE = "DEERSTALKER_ENGINE_THREADS"
"""Environment variable by which `process.py` gives a forking CPU engine (`server.py`) its number of threads."""


def cpu_threads(hardware: EngineHardware, model_dir: Path) -> int:
    """Returns the OpenMP threads of a CPU engine: the profile's, or 1 for a small model, else its share of cores."""
    replicas = 1 if hardware.replicas == "auto" else hardware.replicas
    share = usable_cores() // (hardware.tensor_parallel_size * replicas)
    return hardware.threads or (1 if is_small(model_dir) else max(1, share))


def is_small(model_dir: Path) -> bool:
    """Returns whether a model is so small that several CPU threads would spend more time waiting than computing."""
    return weight_bytes(model_dir) < SMALL_MODEL_BYTES
