"""Time of an iteration on GPUs by roofline: the larger of arithmetic and bytes moved, each at a stated efficiency."""

import math
from dataclasses import dataclass
from functools import cache

from flows.config.model_size import LayerSizes
from flows.config.recipe import Recipe
from flows.plan.cluster import Cluster
from flows.plan.memory import cache_bytes_a_token
from flows.plan.workload import Work
from stages.sampling.config import EngineHardware
from stages.training.worker_group.hardware import TrainHardware

TRAINING_SHARE, PREFILL_SHARE, DECODING_SHARE = 0.4, 0.5, 0.6
"""Shares of the peak rate: of arithmetic in training and for prompts, of memory bandwidth in decoding; assumed."""
LINK_SHARE = 0.7
"""Share of a connection's rate that collectives reach; assumed."""
STORE_RATE = 1e9
"""Bytes/s to and from the store; assumed."""
STEP_SECONDS, TOKEN_SECONDS = 2e-3, 20e-6
"""Seconds that an engine spends on the CPU for each step and for each token: scheduling, sampling, output; assumed."""
_WIDTH = 2
"""Bytes of a number in bf16."""


@dataclass(frozen=True)
class Times:
    """Seconds of an iteration.

    Attributes:
        sample: Sampling, with the validation.
        train: Log-probabilities and optimizer steps.
        save: Writing the checkpoint and the training state, and loading the weights into the engines.
        idle: Share of the GPU time in which a GPU waits.
        lost: Share of the trainer processes' time in which one waits, because the rows of a step do not divide by the
            processes, or computes the prompt of a divided row again.
        lost_divided: The same if `pack.rows_multiple` were the number of processes.
        limit: Name of the term that takes longest.
        flops: Floating-point operations of all GPUs.
        link_bytes: Bytes that each GPU receives from others on its machine.
        network_bytes: Bytes that each GPU receives from other machines.
        store_bytes: Bytes written to the store and read from it.
    """

    sample: float
    train: float
    save: float
    idle: float
    lost: float
    lost_divided: float
    limit: str
    flops: float
    link_bytes: float
    network_bytes: float
    store_bytes: float

    @property
    def iteration(self) -> float:
        """Seconds of an iteration."""
        return self.sample + self.train + self.save


@cache
def most_rows(rows: float, processes: int, multiple: int, repeated: float) -> float:
    """Returns the rows that the process with most of them computes in a step, in units of an undivided row.

    As `pack.rows_multiple` does, the longest row is divided in two until there is a multiple of `multiple`. As the
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


def iteration_times(
    recipe: Recipe,
    shape: LayerSizes,
    work: Work,
    cluster: Cluster,
    trainer: TrainHardware,
    engine: EngineHardware,
    cache_bytes: float,
    state_bytes: float,
    token_seconds: float = TOKEN_SECONDS,
) -> Times:
    """Returns the times of an iteration.

    * A token costs 2 FLOPs a weight in a forward pass. The output head and attention, 4 Q L for each token attended to,
      count for completions only. Training costs three forward passes, four with activation checkpointing.
    * Decoding reads the weights once a step and each sequence's cache. As many sequences run as the cache has room for.
      The engine's own work comes after that. The longest completion takes its steps one after the other.
    * FSDP2 gathers N weights in bf16 for forward and again for backward, and reduces N gradients in fp32, for each
      micro-batch. This runs beside the arithmetic, so the longer one counts.
    * Rows of an optimizer step that do not divide among the processes leave some of them idle.
    * The processes of a tensor group compute the same rows, and each the whole output head. They add the outputs of
      attention and feed-forward network in each forward pass, and the gradients of their inputs in each backward pass.
      The arithmetic waits for that.

    Args:
        cache_bytes: KV cache of one engine on all of its GPUs.
        state_bytes: Training state that an iteration writes.
        token_seconds: The engine's own work for a token.
    """
    gpu, world, group, shares = cluster.gpu, trainer.world, trainer.tensor_parallel, trainer.row_shares
    body = shape.layers * shape.layer
    context = work.prompt + work.completion / 2
    forward = 2 * (work.trained_tokens * body + work.loss_tokens * shape.head * group)
    forward += 4 * shape.queries * shape.layers * work.loss_tokens * context
    passes = (4 if trainer.activation_checkpointing else 3) * work.epochs + work.forward_passes

    rows_in_step = work.rows / work.steps
    repeated = work.prompt / recipe.pack.row_size
    rows_of_process = most_rows(rows_in_step, shares, recipe.pack.rows_multiple, repeated)
    busy = rows_in_step / (shares * rows_of_process)
    divided = rows_in_step / (shares * most_rows(rows_in_step, shares, world, repeated))
    rows_in_micro = max(1, trainer.micro_batch_tokens // recipe.pack.row_size)
    micros = work.steps * math.ceil(rows_of_process / rows_in_micro)
    weights = shape.parameters
    gathers = (2 if trainer.reshard_after_forward else 1) * work.epochs + work.forward_passes
    moved = micros * weights / group * (_WIDTH * gathers + 4 * work.epochs) * (shares - 1) / shares
    arithmetic = passes * forward / (world * busy * gpu.flops * TRAINING_SHARE)
    exchange = moved / (cluster.between * LINK_SHARE)
    sums = 2 * shape.layers * (passes - work.epochs)  # a backward pass costs two forward passes, but sums as often
    summed = sums * 2 * (group - 1) / group * _WIDTH * shape.hidden * work.trained_tokens / (shares * busy)
    summing = summed / (gpu.link * LINK_SHARE)
    train = max(arithmetic, exchange) + summing

    replicas = max(1, cluster.count // engine.tensor_parallel_size)
    fleet = replicas * engine.tensor_parallel_size
    fitting = max(1.0, cache_bytes / (cache_bytes_a_token(shape, _WIDTH) * (work.prompt + work.completion)))
    at_once = min(engine.max_num_seqs, fitting, work.sampled / replicas)
    rate = engine.tensor_parallel_size * gpu.bandwidth * DECODING_SHARE
    cache_of_step = cache_bytes_a_token(shape, _WIDTH) * context * at_once
    products = 2 * (body + shape.head) * at_once / (engine.tensor_parallel_size * gpu.flops * PREFILL_SHARE)
    computing = max((_WIDTH * weights + cache_of_step) / rate, products)
    a_step = computing + STEP_SECONDS + at_once * token_seconds
    decoding = work.sampled_tokens / (replicas * at_once) * a_step
    alone = _WIDTH * weights / rate + STEP_SECONDS + token_seconds
    tail = max(0.0, recipe.sample.sampling.max_tokens * alone - decoding)
    prefill = 2 * work.prompt_tokens * body / (fleet * gpu.flops * PREFILL_SHARE)
    sample = decoding + prefill + tail

    store = _WIDTH * weights * 2 + state_bytes
    if engine.takes_turns:  # the trainer reads its weights and its state again
        store += _WIDTH * weights + state_bytes
    save = store / STORE_RATE
    parts = {
        "decoding": decoding, "longest completion": tail, "prompts": prefill, "store": save,
        "rows of a step" if busy < 0.6 else "training": arithmetic, "exchange of weights": exchange,
        "sums of tensor groups": summing,
    }  # fmt: skip
    decoding_work = decoding * computing / a_step * fleet / cluster.count
    work_s = decoding_work + prefill + min(arithmetic * busy, train) * world / cluster.count
    across = moved if cluster.nodes > 1 else 0.0
    return Times(
        sample=sample,
        train=train,
        save=save,
        idle=1 - min(1.0, work_s / (sample + train + save)),
        lost=1 - busy,
        lost_divided=1 - divided,
        limit=max(parts, key=lambda name: parts[name]),
        flops=passes * forward + 2 * (work.prompt_tokens * body + work.sampled_tokens * (body + shape.head)),
        link_bytes=moved + summed,
        network_bytes=across / cluster.per_node,
        store_bytes=store,
    )
