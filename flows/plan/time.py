"""Time of an iteration by roofline: the larger of arithmetic and bytes moved, each at a stated efficiency."""

import math
from dataclasses import dataclass, replace
from functools import cache

from flows.config.model_size import LayerSizes
from flows.config.recipe import Recipe
from flows.plan.cluster import Cluster
from flows.plan.memory import sequence_cache_bytes
from flows.plan.workload import Work
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware


@dataclass(frozen=True)
class Efficiency:
    """The shares of its peak rates that a device reaches, and the seconds that its programs spend besides arithmetic.

    Attributes:
        training: Share of the arithmetic in training.
        prompts: Share of the arithmetic when an engine reads prompts.
        decoding: Share of the arithmetic in decoding.
        bandwidth: Share of the memory bandwidth in decoding.
        step: Seconds of an engine's own work for each step: scheduling, sampling, output.
        token: Seconds of an engine's own work for each sampled token.
        completion: Seconds of each completion outside the engine.
        iteration: Seconds of an iteration that do not depend on its size.
    """

    training: float
    prompts: float
    decoding: float
    bandwidth: float
    step: float
    token: float
    completion: float = 0.0
    iteration: float = 0.0


ON_GPUS = Efficiency(0.4, 0.5, 0.5, 0.6, step=2e-3, token=20e-6)
"""Shares of the rates in the makers' data sheets; assumed."""
ON_CPUS = (
    Efficiency(0.6, 0.6, 0.3, 1.0, step=0.0, token=50e-6, completion=0.0005, iteration=1.0),
    Efficiency(0.15, 0.2, 0.05, 1.0, step=0.0, token=200e-6, completion=0.002, iteration=5.0),
)
"""The highest and the lowest shares of the measured rate of matrix products, the only limit that is assumed; from
`answers_only` and `smollm2` on two cores."""
LINK_SHARE = 0.7
"""Share of a connection's rate that collectives reach."""
STORE_RATE = 1e9
"""Bytes/s to and from the store."""
HOST_RATE, HOST_MEMORY_RATE = 25e9, 200e9
"""Bytes/s between a GPU and its host, and of the host's memory, which all its processes share."""
SUM_SECONDS = 10e-6
"""Latency of a sum over an engine's GPUs, in seconds."""
ASSUMED = (
    f"assumed: {ON_GPUS.training:.0%} of the peak FLOP/s in training, {ON_GPUS.prompts:.0%} for prompts, "
    f"{ON_GPUS.bandwidth:.0%} of the memory bandwidth in decoding, {LINK_SHARE:.0%} of a connection's rate; "
    f"{1e3 * ON_GPUS.step:.0f} ms of an engine's own work a step and {1e6 * ON_GPUS.token:.0f} µs a token; "
    f"{STORE_RATE / 1e9:.0f} GB/s to the store, {HOST_RATE / 1e9:.0f} GB/s between GPU and host, "
    f"{HOST_MEMORY_RATE / 1e9:.0f} GB/s of the host's memory"
)
"""The numbers above for GPUs in a sentence. They are not measured."""
_WIDTH = 2
"""Bytes of a number in bf16."""
_OPTIMIZER_BYTES = 28
"""Bytes of a weight that Adam reads and writes in fp32: gradient, weight and two moments, of which it writes three."""


@dataclass(frozen=True)
class Times:
    """Seconds of an iteration.

    Attributes:
        sample: Sampling, with the validation.
        train: Log-probabilities and optimizer steps, those of a critic included.
        save: Writing the checkpoint, loading the weights into the engines, and the part of writing the optimizer state
            for which the next training would have to wait.
        idle: Share of the GPU time in which a GPU waits.
        lost: Share of the trainer processes' time in which one waits, because a step's rows do not divide among the
            processes, or computes the prompt of a divided row again.
        row_shares: Number of trainer processes, or of their tensor groups, among which the rows divide.
        lost_divided: The same loss if `pack.rows_multiple` were `row_shares`.
        limit: Name of the term that takes longest.
        flops: Floating-point operations of all GPUs.
        link_bytes: Bytes that each GPU receives from others on its machine.
        network_bytes: Bytes that each GPU receives from other machines.
        published_bytes: Bytes of the checkpoint that an iteration publishes.
        store_bytes: Bytes written to the store and read from it.
    """

    sample: float
    train: float
    save: float
    idle: float
    lost: float
    row_shares: int
    lost_divided: float
    limit: str
    flops: float
    link_bytes: float
    network_bytes: float
    published_bytes: float
    store_bytes: float

    @property
    def iteration(self) -> float:
        """Seconds of an iteration."""
        return self.sample + self.train + self.save


@cache
def most_rows(rows: float, processes: int, multiple: int, repeated: float) -> float:
    """Returns the rows that the process with most of them computes in a step, in units of an undivided row.

    As with `pack.rows_multiple`, the longest row is halved until the row count is a multiple of `multiple`. As the
    trainer does, rows go to the process with the fewest tokens, the longest first.

    Args:
        rows: Rows of a step, all equally long; a mean over steps.
        processes: Number of trainer processes.
        repeated: Part of a row that both halves of a divided one hold: its prompt.
    """
    sizes = [1.0] * math.ceil(rows)
    while len(sizes) % multiple:
        longest = sizes.index(max(sizes))
        sizes[longest : longest + 1] = [(sizes[longest] + repeated) / 2] * 2
    loads = [0.0] * processes
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


@dataclass(frozen=True)
class _Training:
    """Log-probabilities and optimizer steps: seconds of each term, FLOPs of all GPUs, bytes to each GPU."""

    arithmetic: float
    exchange: float
    sums: float
    offload: float
    busy: float
    divided: float
    flops: float
    moved: float
    summed: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.exchange) + self.sums + self.offload


@dataclass(frozen=True)
class _Sampling:
    """Sampling and validation: seconds of each term, GPU seconds of arithmetic, FLOPs of all GPUs."""

    decoding: float
    prompts: float
    outside: float
    tail: float
    work: float
    flops: float

    @property
    def seconds(self) -> float:
        return self.decoding + self.prompts + self.outside + self.tail


def _training(
    recipe: Recipe, shape: LayerSizes, work: Work, cluster: Cluster, trainer: TrainHardware, share: float
) -> _Training:
    gpu, world, group, shares = cluster.gpu, trainer.world, trainer.tensor_parallel, trainer.row_shares
    forward = 2 * (work.trained_tokens * shape.layers * shape.computed + work.loss_tokens * shape.head * group)
    forward += 4 * shape.queries * shape.layers * work.loss_tokens * work.context
    passes = (4 if trainer.activation_checkpointing else 3) * work.epochs + work.forward_passes

    rows_in_step = work.rows / work.steps
    repeated = work.prompt / recipe.pack.row_size
    rows_of_process = most_rows(rows_in_step, shares, recipe.pack.rows_multiple, repeated)
    busy = rows_in_step / (shares * rows_of_process)
    rows_in_micro = max(1, trainer.micro_batch_tokens // recipe.pack.row_size)
    micros = work.steps * math.ceil(rows_of_process / rows_in_micro)
    gathers = (2 if trainer.reshard_after_forward else 1) * work.epochs + work.forward_passes
    bytes_a_weight = _WIDTH * gathers + 4 * work.epochs
    moved = micros * shape.parameters / group * bytes_a_weight * (shares - 1) / shares
    sums = 2 * shape.layers * (passes - work.epochs)  # a backward pass costs two forward passes, but sums as often
    summed = sums * 2 * (group - 1) / group * _WIDTH * shape.hidden * work.trained_tokens / (shares * busy)
    offload = 0.0
    if trainer.cpu_offload:
        offload = micros * shape.parameters / world * bytes_a_weight / HOST_RATE
        on_host = shape.parameters * trainer.processes / world
        offload += work.steps * work.epochs * _OPTIMIZER_BYTES * on_host / HOST_MEMORY_RATE
    return _Training(
        arithmetic=passes * forward / (world * busy * gpu.flops * share),
        exchange=moved / (cluster.between * LINK_SHARE),
        sums=summed / (gpu.link * LINK_SHARE),
        offload=offload,
        busy=busy,
        divided=rows_in_step / (shares * most_rows(rows_in_step, shares, shares, repeated)),
        flops=passes * forward,
        moved=moved,
        summed=summed,
    )


def _critic(
    recipe: Recipe, shape: LayerSizes, work: Work, cluster: Cluster, trainer: TrainHardware, share: float
) -> _Training | None:
    """Returns the work of the critic on the same tokens: values in one pass, then its own passes; None without one.

    It is counted with the policy's layers and a head of one row.
    """
    if (value := recipe.value) is None:
        return None
    rows = max(1, math.ceil(work.trained_tokens / value.row_tokens))
    steps = min(rows, value.updates)
    own = replace(work, row_tokens=value.row_tokens, rows=rows, steps=steps, epochs=value.epochs, forward_passes=1)
    packed = recipe.model_copy(update={"pack": recipe.pack.model_copy(update={"row_tokens": value.row_tokens})})
    return _training(packed, replace(shape, vocabulary=1), own, cluster, trainer, share)


def _sampling(
    recipe: Recipe,
    shape: LayerSizes,
    work: Work,
    cluster: Cluster,
    engine: EngineHardware,
    cache_bytes: float,
    efficiency: Efficiency,
) -> _Sampling:
    gpu, width = cluster.gpu, engine.tensor_parallel_size
    weights, body = shape.parameters, shape.layers * shape.computed
    replicas = max(1, cluster.count // width)
    fitting = max(1.0, cache_bytes / sequence_cache_bytes(shape, work.prompt + work.completion, _WIDTH))
    at_once = min(engine.max_num_seqs, fitting, work.sampled / replicas)
    rate = width * gpu.bandwidth * efficiency.bandwidth
    of_token = 2 * shape.layers * 2 * (width - 1) / width * _WIDTH * shape.hidden / (gpu.link * LINK_SHARE)
    of_step = 2 * shape.layers * SUM_SECONDS if width > 1 else 0.0

    reading = (_WIDTH * weights + sequence_cache_bytes(shape, work.context, _WIDTH) * at_once) / rate
    computing = max(reading, 2 * (body + shape.head) * at_once / (width * gpu.flops * efficiency.decoding))
    overhead = efficiency.step + of_step
    a_step = computing + overhead + at_once * (efficiency.token + of_token)
    decoding = work.sampled_tokens / (replicas * at_once) * a_step
    alone = _WIDTH * weights / rate + overhead + efficiency.token + of_token
    prompts = 2 * body * work.prompt_tokens / (replicas * width * gpu.flops * efficiency.prompts)
    return _Sampling(
        decoding=decoding,
        prompts=prompts + work.prompt_tokens / replicas * of_token,
        outside=work.sampled * efficiency.completion + efficiency.iteration,
        tail=max(0.0, recipe.sample.sampling.max_tokens * alone - decoding),
        work=(decoding * computing / a_step + prompts) * replicas * width,
        flops=2 * (work.prompt_tokens * body + work.sampled_tokens * (body + shape.head)),
    )


def iteration_times(
    recipe: Recipe,
    shape: LayerSizes,
    work: Work,
    cluster: Cluster,
    trainer: TrainHardware,
    engine: EngineHardware,
    cache_bytes: float,
    checkpoint_bytes: float,
    state_bytes: float,
    critic_state_bytes: float = 0.0,
    efficiency: Efficiency = ON_GPUS,
) -> Times:
    """Returns the times of an iteration.

    * A token costs 2 FLOPs a weight in a forward pass. The output head and attention, 4 Q L for each token attended to,
      count for completions only. Training costs three forward passes, four with activation checkpointing.
    * Decoding reads the weights once a step and each sequence's cache. As many sequences run at once as fit into the
      cache. The engine's own work is added. The longest completion takes its steps one after the other.
    * FSDP2 gathers N weights in bf16 for forward and again for backward, and reduces N gradients in fp32, for each
      micro-batch. This overlaps with the arithmetic, so the longer one counts.
    * With `cpu_offload`, a process's share of these bytes also moves between GPU and host, and Adam reads and writes
      28 bytes a weight in the host's memory. Nothing overlaps with that.
    * Rows of an optimizer step that do not divide among the processes leave some of them idle.
    * The processes of a tensor group compute the same rows, and each the whole output head. They add the outputs of
      attention and feed-forward network in each forward pass, and the gradients of their inputs in each backward pass.
      The arithmetic waits for that. So it does in an engine on several GPUs.
    * A critic reads the same tokens: in one pass for the values, then in its own passes. It and the policy take turns
      in the trainer, so both are written to the store and read from it in each iteration.

    The optimizer state is written while the next iteration samples. With `takes_turns` the trainer writes it before it
    leaves the GPU, so all of that counts.

    Engine and trainer share all GPUs, so `iterate_ahead` gains nothing here.

    Args:
        cache_bytes: KV cache of one engine on all of its GPUs.
        checkpoint_bytes: Checkpoint of the policy that an iteration writes and the engines read.
        state_bytes: Optimizer state of the policy that an iteration writes.
        critic_state_bytes: That of the critic.
        efficiency: The shares of their peak rates that the devices reach.
    """
    training = _training(recipe, shape, work, cluster, trainer, efficiency.training)
    critic = _critic(recipe, shape, work, cluster, trainer, efficiency.training)
    critic_s = critic.seconds if critic else 0.0
    sampling = _sampling(recipe, shape, work, cluster, engine, cache_bytes, efficiency)
    weights_bytes = _WIDTH * shape.parameters
    store = 2 * checkpoint_bytes + state_bytes + (2 * (weights_bytes + critic_state_bytes) if critic else 0.0)
    beside = 0.0 if engine.takes_turns else min(state_bytes / STORE_RATE, sampling.seconds)
    if engine.takes_turns or critic:  # the trainer reads its weights and its state again
        store += weights_bytes + state_bytes
    save = store / STORE_RATE - beside
    parts = {
        "decoding": sampling.decoding, "longest completion": sampling.tail, "prompts": sampling.prompts, "store": save,
        "rows of a step" if training.busy < 0.6 else "training": training.arithmetic, "critic": critic_s,
        "exchange of weights": training.exchange, "sums of tensor groups": training.sums, "offload": training.offload,
    }  # fmt: skip
    total = sampling.seconds + training.seconds + critic_s + save
    trained = [part for part in (training, critic) if part]
    work_s = sampling.work + sum(part.arithmetic * part.busy for part in trained) * trainer.world
    return Times(
        sample=sampling.seconds,
        train=training.seconds + critic_s,
        save=save,
        idle=1 - min(1.0, work_s / cluster.count / total),
        lost=1 - training.busy,
        row_shares=trainer.row_shares,
        lost_divided=1 - training.divided,
        limit=max(parts, key=lambda name: parts[name]),
        flops=sum(part.flops for part in trained) + sampling.flops,
        link_bytes=sum(part.moved + part.summed for part in trained),
        network_bytes=sum(part.moved for part in trained if cluster.nodes > 1) / cluster.per_node,
        published_bytes=checkpoint_bytes,
        store_bytes=store,
    )
