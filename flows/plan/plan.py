"""A plan: whether a recipe and a profile fit a cluster, settings that fit, and the cost of an iteration."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from artifacts.errors import BadInputError
from flows.config.model_size import LayerSizes, ModelSize, model_size
from flows.config.recipe import Recipe
from flows.plan.cluster import Cluster
from flows.plan.memory import BYTES, Precision, TrainerMemory, saving_memory, sequence_cache_bytes, trainer_memory
from flows.plan.time import Times, iteration_times
from flows.plan.workload import (
    Work,
    learning_parameters,
    longest_micro_batch,
    longest_prompt,
    not_counted,
    work_of,
    written_bytes,
)
from stages.context import Profile
from stages.hardware.compute_type import ComputeType
from stages.training.worker_group.hardware import TrainHardware

GIB = 1 << 30
_PROCESS_BYTES = GIB
"""CUDA context and buffers of NCCL of one process; assumed."""
_FRAGMENTED = 1.05
"""Ratio of the memory that torch's allocator reserves to the memory in use; assumed."""
_ENGINE_BYTES = 2 * GIB
"""Memory of an engine on each GPU beside weights and cache: graphs and activations; assumed."""
_ASLEEP_BYTES = GIB
"""Memory that a sleeping engine keeps on each GPU: its CUDA context and buffers of NCCL; assumed."""
_ASLEEP_GRAPHS_BYTES = GIB
"""Memory of its CUDA graphs, which it keeps too; assumed."""
_SHARES = (0.15, 0.2, 0.3, 0.45, 0.6, 0.75)
_SHARES_IN_TURNS = (*_SHARES, 0.9)
_CHUNKS = (512, 2048)


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU, and on the host of the first process.

    Attributes:
        trainer: One trainer process at its peak.
        engine_weights: One engine's weights on one of its GPUs.
        cache: KV cache that the engine's share leaves, on one of its GPUs; negative if the weights lack room.
        least_cache: Cache of one sequence of the largest length that the model allows, on one of the engine's GPUs.
        sample: Peak while sampling: the engine's share, and the trainer's resident memory unless they take turns.
        train: Peak while training.
        save: Peak while saving: the first process gathers the largest tensor.
        host: Memory on the host of the first process: a file of the checkpoint, and offloaded state.
        gpu: Memory of a GPU.
        missing: Bytes that are missing on a GPU; 0 if every peak fits.
        engine: Memory that the engine reserves on a GPU.
        certain: Peak without the parts that are only assumed: contexts, fragmentation, and the engine's graphs.
    """

    trainer: TrainerMemory
    engine_weights: float
    cache: float
    least_cache: float
    sample: float
    train: float
    save: float
    host: float
    gpu: float
    missing: float
    engine: float
    certain: float


@dataclass(frozen=True)
class Settings:
    """The settings of a profile that a plan decides, by name."""

    processes: int
    nodes: int
    tensor_parallel_size: int
    memory_share: float
    activation_checkpointing: bool
    micro_batch_tokens: int
    cpu_offload: bool
    logprob_chunk_tokens: int
    takes_turns: bool

    @classmethod
    def of(cls, profile: Profile) -> "Settings":
        """Returns the settings of a profile."""
        trainer, engine = profile.trainer, profile.engine
        return cls(
            trainer.processes, trainer.nodes, engine.tensor_parallel_size, engine.memory_share,
            trainer.activation_checkpointing, trainer.micro_batch_tokens, trainer.cpu_offload,
            trainer.logprob_chunk_tokens, engine.takes_turns,
        )  # fmt: skip

    def applied(self, profile: Profile) -> Profile:
        """Returns the profile with these settings, and without tensor parallelism, which no plan chooses."""
        trainer = (
            "processes", "nodes", "activation_checkpointing", "micro_batch_tokens", "cpu_offload",
            "logprob_chunk_tokens",
        )  # fmt: skip
        engine = ("tensor_parallel_size", "memory_share")
        changed = {"kv_cache_gib": None, **{name: getattr(self, name) for name in engine}}
        return profile.model_copy(
            update={
                "trainer": profile.trainer.model_copy(
                    update={"tensor_parallel": 1, **{name: getattr(self, name) for name in trainer}}
                ),
                "engine": profile.engine.model_copy(update=changed),
            }
        )


@dataclass(frozen=True)
class Phase:
    """A phase of a run, or the whole run if it has no phases.

    Attributes:
        name: Its name; empty for a whole run.
        iterations: Number of its iterations. If only a plateau ends it, it is assumed to have an equal share of those
            that are left.
        recipe: The recipe of its iterations.
        work: The work of one of its iterations.
    """

    name: str
    iterations: int
    recipe: Recipe
    work: Work


@dataclass(frozen=True)
class Layout:
    """Settings with their memory and times.

    Attributes:
        of_phases: Times of an iteration of each phase of the plan.
        run: Seconds of all iterations.
        lacks: Machines or GPUs that the settings name and the cluster lacks, as text; empty if it has them.
    """

    settings: Settings
    memory: Memory
    of_phases: tuple[Times, ...]
    run: float
    lacks: str = ""

    @property
    def times(self) -> Times:
        """The times of an iteration, in a run with phases those of the longest one."""
        return max(self.of_phases, key=lambda times: times.iteration)

    @property
    def fits(self) -> bool:
        """Whether the cluster has the GPUs, and every peak fits."""
        return not self.lacks and self.memory.missing == 0


@dataclass(frozen=True)
class Plan:
    """A recipe on a cluster.

    Attributes:
        phases: The phases of the run.
        given: The profile as it is.
        fitting: The fastest settings that fit; None if none do.
        scaling: The fastest settings for other numbers of GPUs of this kind; None where nothing fits.
        not_counted: The parts of the recipe that the plan leaves out.
    """

    cluster: Cluster
    size: ModelSize
    phases: tuple[Phase, ...]
    given: Layout
    fitting: Layout | None
    scaling: list[tuple[Cluster, Layout | None]]
    not_counted: tuple[str, ...] = ()

    @property
    def work(self) -> Work:
        """The work of an iteration, in a run with phases that of the one that takes longest."""
        return self.phases[self.given.of_phases.index(self.given.times)].work


def make_plan(
    recipe: Recipe, profile: Profile, cluster: Cluster, completion: float | None = None, prompt: float | None = None
) -> Plan:
    """Plans a recipe on a cluster.

    Args:
        completion: Mean tokens of a completion (see `work_of`).
        prompt: Mean tokens of a prompt.

    Raises:
        BadInputError: Engines run elsewhere, or the shape of the recipe's model is unknown.
    """
    if urls := profile.engine.external_urls:
        raise BadInputError(
            "engine.external_urls", f"{len(urls)} engine{'s' * (len(urls) != 1)} elsewhere",
            "none: a plan is of engines on the trainer's GPUs", "leave it out, and add it to the written profile",
        )  # fmt: skip
    size = model_size(recipe.model)
    if size.shape is None:
        raise BadInputError(
            "model", str(size), "a model whose config.json is known",
            "fetch or export it once, or set model to a folder that holds its config.json",
        )  # fmt: skip
    phases = _phases(recipe, completion, prompt)
    given = _layout(recipe, profile, size, size.shape, phases, cluster, Settings.of(profile))
    if profile.trainer.tensor_parallel > 1:
        profile = Settings.of(profile).applied(profile)
    scaling = [(other, _fastest(recipe, profile, size, phases, other)) for other in cluster.sizes()]
    fitting = _fastest(recipe, profile, size, phases, cluster)
    return Plan(cluster, size, phases, given, fitting, scaling, not_counted(recipe))


def _phases(recipe: Recipe, completion: float | None, prompt: float | None) -> tuple[Phase, ...]:
    """Returns the phases of a run, with the number of iterations that each is assumed to have."""
    phases: list[Phase] = []
    left, parts = recipe.iterations, recipe.parts
    for number, part in enumerate(parts):
        config = recipe.phases[number] if recipe.phases else None
        most = left // (len(parts) - number) if config is None or config.iterations is None else config.iterations
        iterations = left if part is parts[-1] else min(left, most)
        phases.append(Phase(config.name if config else "", iterations, part, work_of(part, completion, prompt)))
        left -= iterations
    return tuple(phases)


def process_memory(
    recipe: Recipe, trainer: TrainHardware, size: ModelSize, compute: ComputeType, *, cuda: bool
) -> TrainerMemory:
    """Returns the memory of one trainer process of a recipe: that of the training which needs most."""
    return max(_trainings(recipe, trainer, size, compute, cuda=cuda), key=lambda training: training.peak)


def _trainings(
    recipe: Recipe, trainer: TrainHardware, size: ModelSize, compute: ComputeType, *, cuda: bool
) -> list[TrainerMemory]:
    """Returns the memory of a trainer process in each training of a recipe, which take turns."""
    policies = [part.finetune for part in recipe.parts]
    others = (recipe.warm_start, recipe.distil and recipe.distil.sft, recipe.value)
    models = [(policy, policy.reference != "none") for policy in policies]
    return [
        trainer_memory(
            size,
            learning_parameters(model.trainable, size),
            trainer,
            Precision(compute, model.optimizer.master_dtype),
            longest_micro_batch(recipe, trainer),
            cuda=cuda,
            with_reference=with_reference,
        )
        for model, with_reference in (*models, *((other, False) for other in others if other))
    ]


def training_bytes(peak: TrainerMemory, trainer: TrainHardware) -> float:
    """Returns the memory that a trainer process takes of its GPU, with its context and fragmentation."""
    return bytes_on_gpu(peak, trainer) * _FRAGMENTED + _PROCESS_BYTES


def bytes_on_gpu(peak: TrainerMemory, trainer: TrainHardware) -> float:
    """Returns the bytes of a trainer process's tensors on its GPU."""
    return peak.peak - _on_host(peak, trainer)


def _on_host(peak: TrainerMemory, trainer: TrainHardware) -> float:
    return peak.resident + peak.gradients if trainer.cpu_offload else 0.0


def memory_of(recipe: Recipe, profile: Profile, size: ModelSize, gpu_bytes: float) -> Memory:
    """Returns the memory of a recipe and a profile on GPUs with `gpu_bytes` each."""
    assert size.parameters is not None and size.shape is not None
    shape, trainer, engine = size.shape, profile.trainer, profile.engine
    compute: ComputeType = "fp32" if trainer.compute_dtype == "fp32" else "bf16"
    served: ComputeType = "fp32" if engine.dtype == "float32" else "bf16"
    trainings = _trainings(recipe, trainer, size, compute, cuda=True)
    peak = max(trainings, key=lambda training: training.peak)
    on_host = max(_on_host(training, trainer) for training in trainings)
    kept = 0.0 if trainer.cpu_offload else max(training.resident for training in trainings)
    weights = BYTES[served] * shape.parameters / engine.tensor_parallel_size
    reserved = engine.memory_share * gpu_bytes
    cache = reserved - weights - _ENGINE_BYTES
    if engine.kv_cache_gib is not None:
        cache = engine.kv_cache_gib * GIB
        reserved = weights + _ENGINE_BYTES + cache
    longest = max(longest_prompt(part) + part.sample.sampling.max_tokens for part in recipe.parts)
    # vLLM starts only if its cache holds this sequence. It allows less if tokenizer_config.json does.
    required = engine.max_model_len or shape.positions or longest
    sequences = (sequence_cache_bytes(shape, tokens, BYTES[served]) for tokens in (required, longest))
    least, used = (size / engine.tensor_parallel_size for size in sequences)
    sleeping = _ASLEEP_BYTES + (0 if engine.eager else _ASLEEP_GRAPHS_BYTES)
    asleep, beside = (sleeping, 0.0) if engine.takes_turns else (reserved, kept + _PROCESS_BYTES)
    train = asleep + training_bytes(peak, trainer)
    sample = reserved + beside
    averaged = any(part.finetune.reference == "ema" for part in recipe.parts)
    saving, file = saving_memory(shape, trainer, averaged=averaged)
    save = asleep + kept + saving + _PROCESS_BYTES
    missing = max(0.0, train - gpu_bytes, sample - gpu_bytes, save - gpu_bytes, least - cache)
    host = file + on_host * trainer.processes
    on_gpu, of_engine = bytes_on_gpu(peak, trainer), max(reserved, weights + min(least, used))
    certain = max(on_gpu, of_engine) if engine.takes_turns else on_gpu + of_engine
    return Memory(peak, weights, cache, least, sample, train, save, host, gpu_bytes, missing, reserved, certain)


def _layout(
    recipe: Recipe,
    profile: Profile,
    size: ModelSize,
    shape: LayerSizes,
    phases: Sequence[Phase],
    cluster: Cluster,
    settings: Settings,
) -> Layout:
    used = settings.applied(profile) if settings != Settings.of(profile) else profile
    memory = memory_of(recipe, used, size, cluster.gpu.memory_bytes)
    cache = max(0.0, memory.cache) * used.engine.tensor_parallel_size
    times = tuple(
        iteration_times(
            phase.recipe, shape, phase.work, cluster, used.trainer, used.engine, cache,
            *written_bytes(phase.recipe, size, used.trainer),
        )
        for phase in phases
    )  # fmt: skip
    run = sum(phase.iterations * of_one.iteration for phase, of_one in zip(phases, times, strict=True))
    return Layout(settings, memory, times, run, _lacking(settings, cluster))


def _lacking(settings: Settings, cluster: Cluster) -> str:
    if settings.nodes > cluster.nodes:
        return f"{settings.nodes} machines, there are {cluster.nodes}"
    gpus = max(settings.processes, settings.tensor_parallel_size)
    return f"{gpus} GPUs on a machine, there are {cluster.per_node}" if gpus > cluster.per_node else ""


def _fastest(
    recipe: Recipe, profile: Profile, size: ModelSize, phases: Sequence[Phase], cluster: Cluster
) -> Layout | None:
    """Returns the fastest settings that fit; None if none do.

    All GPUs train, and engines of 1, 2, 4 or 8 GPUs sample on all of them.

    State in the host's memory is tried only if nothing else fits.
    """
    assert size.shape is not None
    for offload in (False, True):
        layouts = (
            _layout(recipe, profile, size, size.shape, phases, cluster, settings)
            for settings in possible_settings(recipe, profile, cluster, offload=offload)
        )
        if fitting := [layout for layout in layouts if layout.fits]:
            return min(fitting, key=lambda layout: (layout.run, layout.times.iteration))
    return None


def possible_settings(recipe: Recipe, profile: Profile, cluster: Cluster, *, offload: bool) -> Iterator[Settings]:
    """Yields the settings among which a plan chooses; the GPUs of an engine divide the heads of the model."""
    first, shape = Settings.of(profile), model_size(recipe.model).shape
    common = math.gcd(*shape.heads) if shape is not None and shape.heads is not None else 0
    widths = [width for width in (1, 2, 4, 8) if cluster.per_node % width == 0 == common % width]
    row = max(part.pack.row_size for part in recipe.parts)
    micro = sorted({row, max(first.micro_batch_tokens, row)})
    shares = _SHARES_IN_TURNS if profile.engine.takes_turns else _SHARES
    for width, share, again, tokens, chunk in product(widths, shares, (False, True), micro, _CHUNKS):
        yield replace(
            first, processes=cluster.per_node, nodes=cluster.nodes, tensor_parallel_size=width, memory_share=share,
            activation_checkpointing=again, micro_batch_tokens=tokens, cpu_offload=offload,
            logprob_chunk_tokens=chunk,
        )  # fmt: skip
