"""Log-probabilities of given completions under a model that is not trained, such as a teacher.

Shapes: R rows, T tokens of a padded row.
"""

import resource
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from stages.models.shape import read_shape
from stages.training.job import ScoreJob
from stages.training.model.placement import compute_dtype, load_reference
from stages.training.model.policy import Policy
from stages.training.results import TrainTotals
from stages.training.row_work import RowWork
from stages.training.trainer_batch import TrainerBatch


def score(job: ScoreJob, device: torch.device, sharded: bool, heartbeat: Callable[[], None]) -> TrainTotals:
    """Runs a job and writes its file (collective).

    Raises:
        BadInputError: The batch or the checkpoint is invalid.
    """
    started = time.perf_counter()
    reset_peak_memory(device)
    shape = read_shape(job.checkpoint_dir)
    batch = TrainerBatch(job.batch_file, shape.vocab_size)
    policy = load_reference(job.checkpoint_dir, shape.vocab_size, job.hardware, device, sharded, heartbeat)
    loaded = time.perf_counter()
    logprobs = batch_logprobs(policy, batch, job, device, heartbeat)
    scored = time.perf_counter()
    if dist.get_rank() == 0:
        save_file({"logprobs": logprobs.view(batch.shape)}, job.out_file)
    tokens = sum(batch.row_tokens)
    return TrainTotals(
        tokens=tokens,
        loss_tokens=int(logprobs.isfinite().sum()),
        tokens_per_s=tokens / max(scored - loaded, 1e-9),
        peak_memory_bytes=peak_memory_bytes(device),
        load_s=loaded - started,
        old_logprobs_s=scored - loaded,
        train_s=0.0,
        save_s=time.perf_counter() - scored,
    )


def batch_logprobs(
    policy: Policy, batch: TrainerBatch, job: ScoreJob, device: torch.device, heartbeat: Callable[[], None]
) -> Tensor:
    """Returns the log-probabilities of all tokens in the loss (collective).

    Returns:
        [R * T] float32, by address; NaN where a token is not in the loss. Every process has all of them.
    """
    rows, width = batch.shape
    dtype, work = compute_dtype(job.hardware, policy.shape), RowWork(batch, job.hardware, device, heartbeat)
    logprobs = torch.full((rows * width,), torch.nan, device=device)
    work.fill(logprobs, batch.steps, lambda flat: policy(policy.inputs(flat, dtype, device), job.temperature)[0])
    return work.merged(logprobs)


def reset_peak_memory(device: torch.device) -> None:
    """Begins the measurement of `peak_memory_bytes` on a GPU, where one process does several jobs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Returns the peak memory of the process or device that used most (collective)."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    highest = torch.tensor(peak, dtype=torch.int64, device=device)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return int(highest)
