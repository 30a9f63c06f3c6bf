"""Refuses a run whose trainer and engine together cannot fit into the GPUs of this machine."""

from artifacts.errors import BadInputError
from flows.config.model_size import model_size
from flows.config.recipe import Recipe
from flows.plan.plan import GIB, memory_of
from stages.context import Profile
from stages.hardware.compute_type import CudaDevice, cuda_devices


def refuse_unfit(recipe: Recipe, profile: Profile, devices: tuple[CudaDevice, ...] | None = None) -> None:
    """Refuses a recipe and a profile that cannot fit on the GPUs of this machine.

    A run that trains on the CPU, has external engines, or has a model of unknown shape is never refused; `doctor`
    estimates it. Memory that a plan only assumes (contexts, fragmentation) does not count here.

    Args:
        devices: The GPUs; by default those of this machine.

    Raises:
        BadInputError: A GPU lacks memory, or there are fewer GPUs than trainer processes.
    """
    gpus = cuda_devices() if devices is None else devices
    trainer, engine = profile.trainer, profile.engine
    if not gpus or trainer.device == "cpu" or engine.external_urls:
        return
    size = model_size(recipe.model)
    if size.shape is None:
        return
    if trainer.processes > len(gpus):
        raise BadInputError(
            "trainer.processes", str(trainer.processes), f"at most {len(gpus)}, the GPUs of this machine",
            "lower it in the profile; `deerstalker plan --write FILE` writes one that fits",
        )  # fmt: skip
    memory = memory_of(recipe, profile, size, min(gpu.memory_bytes for gpu in gpus))
    needed = memory.certain
    if needed > memory.gpu:
        parts = (
            f"trainer {memory.trainer.peak / GIB:.1f} GiB, engine {memory.engine / GIB:.1f} GiB "
            f"(weights {memory.engine_weights / GIB:.1f} GiB)"
        )
        raise BadInputError(
            "profile",
            f"{needed / GIB:.1f} GiB needed on a GPU: {parts}",
            f"at most {memory.gpu / GIB:.1f} GiB",
            f"`deerstalker plan --gpus {len(gpus)}x... --write FILE` writes a profile that fits, if there is one",
        )
