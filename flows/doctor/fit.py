"""Estimates whether a recipe fits a machine: memory, disk space, and the time of an iteration.

The estimates are computed from sizes and from measured constants; comments give the measurements.
"""

import math
from collections.abc import Mapping

from artifacts.documents.parsing import exists
from artifacts.errors import BadInputError
from artifacts.store.location import local_folder
from flows.checks.fitting import refuse_head_size, refuse_undivided, refuse_unfit
from flows.checks.soundness import check_sound
from flows.config.model_size import ModelSize
from flows.config.recipe import Recipe
from flows.doctor.checks import Check, gib, refused
from flows.doctor.facts import MachineFacts
from flows.doctor.hardware import Device, Hardware
from flows.doctor.store_facts import StoreFacts
from flows.plan.cluster import Cluster, Gpu, gpu_of
from flows.plan.host import engine_bytes, program_bytes, replica_count
from flows.plan.plan import GIB, memory_of, process_memory
from flows.plan.time import ON_CPUS, ON_GPUS, iteration_times
from flows.plan.workload import most_work_of, not_counted, state_bytes, work_of, written_bytes
from stages.context import Profile
from stages.environments import environment
from stages.environments.capabilities import AnswersCalls, needs
from stages.environments.config import GeneratorConfig, SourceConfig
from stages.environments.generate import generate_nth
from stages.environments.solver_tool import write_tool_output
from stages.hardware.compute_type import ComputeType
from stages.models.source import FolderModel, check_source
from stages.prepare import identity_of
from stages.training.worker_group.hardware import TrainHardware

_DISK_BYTES_A_TOKEN = 24
"""Bytes of a sampled token in the store: its id and log-probability, and its share of text and batch."""
_CHARACTERS_A_TOKEN = 4
"""Characters of English text in a token of a common tokenizer."""


def fit_checks(
    recipe: Recipe,
    hardware: Hardware,
    size: ModelSize,
    machine: MachineFacts,
    store: StoreFacts,
    types: tuple[ComputeType, ComputeType],
    devices: tuple[Device, Device],
    gflops: float | None,
) -> list[Check]:
    """Returns the checks of a recipe: its model, memory, disk space and time.

    In a run with phases the time is that of the phase with the longest completions, and all else that of the phase
    which needs most.

    Args:
        types: Compute types of the trainer and of the engine.
        devices: Devices of the trainer and of the engine.
        gflops: Rate of matrix products in the trainer's type on one core, in GFLOP/s; None if it was not measured.
    """
    if size.parameters is None:
        remedy = "start `deerstalker train`, which fetches it, and check again"
        return [Check("model", "warning", str(size), remedy)]
    engine, engine_on_cuda = hardware.engine, devices[1] == "cuda"
    replicas = replica_count(engine, size, math.ceil(machine.usable_cores), len(machine.gpus), cuda=engine_on_cuda)
    longest = max(recipe.parts, key=lambda part: part.sample.sampling.max_tokens)
    tool_tokens = tool_output_tokens(longest)
    of_trainer = trainer_bytes(recipe, hardware, size, types[0], cuda=devices[0] == "cuda")
    of_engines = engine_bytes(engine, size, types[1], replicas, cuda=engine_on_cuda)
    stored = max(
        store_bytes(part, size, hardware.trainer, tool_tokens, hardware.keep_state_every) for part in recipe.parts
    )
    seconds = iteration_seconds(longest, hardware, size, machine, devices, gflops, tool_tokens)
    return [
        Check("model", "ok", str(size), figures={"parameters": size.parameters, "told_by": size.source}),
        *_layer_checks(recipe, hardware),
        *_memory_checks(recipe, hardware, size, machine, devices, of_trainer, of_engines, replicas),
        _room_check(recipe, store, stored),
        _time_check(seconds, not_counted(recipe)),
    ]


def settings_checks(recipe: Recipe) -> list[Check]:
    """Returns a problem if `train` would refuse the settings of a new run, else nothing."""
    try:
        check_sound(recipe)
    except BadInputError as error:
        return [refused("recipe settings", error)]
    return []


def model_checks(recipe: Recipe) -> list[Check]:
    """Returns a problem if `train` would refuse the local folder of the recipe's model, else nothing."""
    folder = local_folder(recipe.model.path) if isinstance(recipe.model, FolderModel) else None
    if folder is None:
        return []
    if not exists(folder):
        remedy = "copy it here; a store that has fetched it needs no folder"
        return [Check("recipe model", "warning", f"{folder} does not exist", remedy)]
    try:
        check_source(folder)
    except BadInputError as error:
        return [refused("recipe model", error)]
    return []


def puzzles_checks(recipe: Recipe) -> list[Check]:
    """Opens the file or the code that the recipe's items come from; a recipe whose puzzles are generated has none."""
    puzzles = recipe.puzzles
    if puzzles.file is None and not isinstance(puzzles.puzzle, SourceConfig):
        return []
    try:
        identity_of(puzzles)
    except BadInputError as error:
        return [refused("recipe puzzles", error)]
    location = puzzles.puzzle.location if isinstance(puzzles.puzzle, SourceConfig) else puzzles.file
    return [Check("recipe puzzles", "ok", f"{location or puzzles.puzzle.environment} can be opened")]


def _layer_checks(recipe: Recipe, hardware: Hardware) -> list[Check]:
    """Returns a problem if an engine cannot compute the model, or tensor parallelism does not divide it."""
    try:
        refuse_head_size(recipe, hardware.engine)
        refuse_undivided(recipe, hardware.trainer, hardware.engine)
    except BadInputError as error:
        return [refused("recipe layers", error)]
    return []


def trainer_bytes(
    recipe: Recipe, hardware: Hardware, size: ModelSize, compute: ComputeType, *, cuda: bool = False
) -> float:
    """Returns the memory of the trainer in bytes, summed over its processes.

    `flows.plan.memory.trainer_memory` computes the bytes of one process.
    """
    return hardware.trainer.world * process_memory(recipe, hardware.trainer, size, compute, cuda=cuda).peak


def tool_output_tokens(recipe: Recipe) -> int:
    """Returns roughly how many tokens an answer of the solver has; 0 if completions do not call the solver.

    The estimate is the answer to a call with all clues of the first puzzle, the longest over the recipe's environments.
    """
    samplings = (recipe.sample.sampling, recipe.evaluate.sampled, recipe.final.sampled)
    if not any(sampling.tool_calls for sampling in samplings) or not isinstance(recipe.puzzles.puzzle, GeneratorConfig):
        return 0
    answers: list[str] = []
    for task in recipe.puzzles.puzzle.tasks:
        puzzle = generate_nth(task, recipe.puzzles.seed, 0)
        solver = needs(environment.get(puzzle.environment), AnswersCalls, "sampling.tool_calls", "set it to 0")
        answers.append(write_tool_output(solver.tool_output(solver.asked(puzzle), puzzle)))
    return math.ceil(max(map(len, answers)) / _CHARACTERS_A_TOKEN)


def store_bytes(
    recipe: Recipe, size: ModelSize, trainer: TrainHardware, tool_tokens: int = 0, keep_state_every: int | None = None
) -> float:
    """Returns the bytes that a whole run adds to its store without pruning.

    With N parameters, of which L are trained, and m bytes of a number in the master type:

    * once: the model, the result of the warm start and that of each round of distillation, 2 N each; a step checkpoint
      of the size of an optimizer state;
    * in each iteration: the checkpoint 2 N, or 4 L if it is an adapter; with `carry_state`, the optimizer state (see
      `state_bytes`); an averaged reference 4 N; 24 for each token of a completion; a critic's checkpoint and state.

    Args:
        tool_tokens: See `tool_output_tokens`.
        keep_state_every: The setting of the profile, by which a run removes states while it goes on.
    """
    assert size.parameters is not None
    total, tune = size.parameters, recipe.finetune
    state = state_bytes(tune.trainable, tune.optimizer.master_dtype, size, trainer)
    sampling = recipe.sample.sampling
    completions = recipe.sample.stride * sampling.samples_per_prompt
    tokens = completions * (sampling.max_tokens + sampling.tool_calls * tool_tokens)
    checkpoint, *states = written_bytes(recipe, size, trainer)
    kept_states = recipe.iterations
    if keep_state_every is not None:
        every = recipe.iterations // keep_state_every if keep_state_every else 0
        kept_states = min(kept_states, every + 4)  # the newest, the best, the promoted, and the one that is written
    iteration = checkpoint + _DISK_BYTES_A_TOKEN * tokens
    iteration += 4 * total if tune.reference == "ema" else 0
    iteration += 2 * total if recipe.value else 0
    rounds = recipe.distil.rounds if recipe.distil else 0
    once = ((4 if recipe.warm_start else 2) + 2 * rounds) * total + state
    return once + recipe.iterations * iteration + kept_states * sum(states)


def iteration_seconds(
    recipe: Recipe,
    hardware: Hardware,
    size: ModelSize,
    machine: MachineFacts,
    devices: tuple[Device, Device],
    gflops: float | None,
    tool_tokens: int = 0,
) -> tuple[float, float] | None:
    """Returns the lowest and highest estimate of an iteration's seconds, with its evaluation on `val`.

    They are the times by `flows.plan.time`, for the work that plans assume and for the most work that the recipe
    allows. Process starts and imports do not count.

    On a CPU, the lowest estimate assumes that each core has its own matrix unit, the highest that all share one, as the
    two threads of a core do.

    Args:
        devices: Devices of the trainer and of the engine.
        gflops: Rate of matrix products in the trainer's type on one core, in GFLOP/s; None if it was not measured.
        tool_tokens: See `tool_output_tokens`.

    Returns:
        None if the shape of the model or the rates of the devices are unknown.
    """
    trainer, engine, shape = hardware.trainer, hardware.engine, size.shape
    if shape is None or devices[0] != devices[1]:
        return None
    if devices[0] == "cuda":
        gpu = min(machine.gpus, key=lambda gpu: gpu.memory_bytes, default=None)
        kind = gpu and gpu_of(gpu.name, gpu.memory_bytes)
        if kind is None:
            return None
        cache = memory_of(recipe, Profile(engine=engine, trainer=trainer), size, kind.memory_bytes).cache
        cache_bytes = max(0.0, cache) * engine.tensor_parallel_size
        ends = [(Cluster(kind, len(machine.gpus)), ON_GPUS)] * 2
    else:
        if gflops is None:
            return None
        cores = machine.usable_cores
        rates = [gflops * 1e9 * count for count in (max(1.0, cores), min(1.0, cores))]
        cache_bytes = math.inf if engine.kv_cache_gib is None else engine.kv_cache_gib * GIB
        whole = {"tensor_parallel": 1, "processes": 1, "nodes": 1}  # the rate includes the cores
        trainer, engine = trainer.model_copy(update=whole), engine.model_copy(update={"tensor_parallel_size": 1})
        ends = [
            (Cluster(Gpu("CPU", 0, machine.memory_bytes, rate, math.inf, math.inf, math.inf), 1), reached)
            for rate, reached in zip(rates, ON_CPUS, strict=True)
        ]
    written = written_bytes(recipe, size, hardware.trainer)
    low, high = (
        iteration_times(recipe, shape, work, cluster, trainer, engine, cache_bytes, *written, reached).iteration
        for work, (cluster, reached) in zip((work_of(recipe), most_work_of(recipe, tool_tokens)), ends, strict=True)
    )
    return low, high


def _memory_checks(
    recipe: Recipe,
    hardware: Hardware,
    size: ModelSize,
    machine: MachineFacts,
    devices: tuple[Device, Device],
    of_trainer: float,
    of_engines: float,
    replicas: int,
) -> list[Check]:
    """Checks that trainer and engine together fit into the memory of their devices.

    Args:
        of_trainer: Memory of all trainer processes together, without the memory of the programs.
        of_engines: Memory of all engines on this machine together, without the memory of the programs.
        replicas: Number of these engines.
    """
    trainer = hardware.trainer
    on_host: dict[str, float] = {}
    on_gpu = 0.0
    gpus_of_trainer = trainer.processes if devices[0] == "cuda" else 0
    gpus_of_engines = replicas * hardware.engine.tensor_parallel_size if devices[1] == "cuda" else 0
    if devices[0] == "cpu" or trainer.cpu_offload:
        on_host["trainer"] = of_trainer / trainer.nodes
    else:
        on_gpu += of_trainer / trainer.world
    if devices[1] == "cpu":
        on_host["engine"] = of_engines
    elif replicas:
        reserved = hardware.engine.memory_share * _least_gpu(machine) if hardware.engine.kv_cache_gib is None else 0.0
        of_engine = max(reserved, of_engines / gpus_of_engines)
        on_gpu = max(on_gpu, of_engine) if hardware.engine.takes_turns else on_gpu + of_engine
    on_host["programs"] = program_bytes(replicas)
    checks = [_host_check(on_host, machine)]
    if on_gpu:
        on_gpus = _gpu_check(on_gpu, max(gpus_of_trainer, gpus_of_engines), machine)
        if on_gpus.status == "ok":
            try:
                refuse_unfit(recipe, Profile(engine=hardware.engine, trainer=trainer), machine.gpus, size)
            except BadInputError as error:
                on_gpus = refused(on_gpus.name, error, figures=on_gpus.figures)
        checks.append(on_gpus)
    return checks


def _host_check(needs: Mapping[str, float], machine: MachineFacts) -> Check:
    needed, parts = sum(needs.values()), ", ".join(f"{name} {gib(size)}" for name, size in needs.items())
    summary = f"about {gib(needed)} needed ({parts}), {gib(machine.spare_bytes)} left"
    figures = {"needed_bytes": int(needed), "spare_bytes": machine.spare_bytes}
    if needed > machine.room_bytes:
        remedy = (
            f"this machine has {gib(machine.room_bytes)}: use a larger one or a smaller model, "
            "or lower trainer.micro_batch_tokens and engine.kv_cache_gib of the profile"
        )
        return Check("recipe memory", "problem", summary, remedy, figures)
    if needed > machine.spare_bytes:
        return Check("recipe memory", "warning", summary, "end other programs first", figures)
    return Check("recipe memory", "ok", summary, figures=figures)


def _gpu_check(needed: float, count: int, machine: MachineFacts) -> Check:
    least = _least_gpu(machine)
    summary = f"about {gib(needed)} needed on each of {count}, {gib(least)} available on each of {len(machine.gpus)}"
    figures = {"needed_bytes": int(needed), "gpu_bytes": least, "gpus": len(machine.gpus), "needed_gpus": count}
    if not machine.gpus:
        return Check("recipe GPU memory", "problem", summary, "use --profile cpu, or a machine with GPUs", figures)
    if count > len(machine.gpus) or needed > least:
        remedy = (
            "use more or larger GPUs (trainer.processes and engine.tensor_parallel_size of the profile), "
            "or set trainer.cpu_offload"
        )
        return Check("recipe GPU memory", "problem", summary, remedy, figures)
    return Check("recipe GPU memory", "ok", summary, figures=figures)


def _least_gpu(machine: MachineFacts) -> int:
    return min((gpu.memory_bytes for gpu in machine.gpus), default=0)


def _room_check(recipe: Recipe, store: StoreFacts, needed_bytes: float) -> Check:
    """Checks that the store has space for all artifacts of the run."""
    summary = f"about {gib(needed_bytes)} for {recipe.iterations} iterations"
    figures = {"needed_bytes": int(needed_bytes), "free_bytes": store.free_bytes}
    if store.free_bytes is None:
        return Check("recipe disk", "ok", f"{summary}, in a store of unknown size", figures=figures)
    summary = f"{summary}, {gib(store.free_bytes)} free"
    if needed_bytes > store.free_bytes:
        remedy = "name a larger store with --store, free space, or prune between iterations (`deerstalker prune`)"
        return Check("recipe disk", "problem", summary, remedy, figures)
    return Check("recipe disk", "ok", summary, figures=figures)


def _time_check(seconds: tuple[float, float] | None, left_out: tuple[str, ...]) -> Check:
    """Returns a check with the estimated time of an iteration; its status is always ok."""
    if seconds is None:
        return Check("recipe time", "ok", "unknown: the shape of the model or the rates of the devices are not known")
    low, high = seconds
    without = f", not counted: {', '.join(left_out)}" if left_out else ""
    figures = {"iteration_s": [round(low, 1), round(high, 1)]}
    return Check(
        "recipe time", "ok", f"{duration(low)} to {duration(high)} an iteration, estimated{without}", figures=figures
    )


def duration(seconds: float) -> str:
    """Returns a duration as text with two digits."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.2g} {name}" if seconds < 100 * unit else f"{seconds / unit:.0f} {name}"
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"
