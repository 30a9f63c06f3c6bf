"""Runs training jobs on one worker process: loads, trains step by step, saves."""

import gc
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from artifacts.errors import BadInputError
from stages.models.shape import DecoderShape, read_shape
from stages.processes.cgroups import usable_cores
from stages.training.checkpointing.full_disk import full_disk_reported
from stages.training.checkpointing.step_checkpoint import StepCheckpoints, resume
from stages.training.job import ScoreJob, TrainJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.movement import movement_lost
from stages.training.model.placement import check_value_head, compute_dtype, load_reference, shards
from stages.training.model.policy import Policy
from stages.training.objectives.objective import OLD
from stages.training.objectives.values import VALUES
from stages.training.results import StepMetrics, TrainTotals
from stages.training.row_memory import check_rows_fit, free_bytes, least_activation_bytes_a_token
from stages.training.scoring import peak_memory_bytes, reset_peak_memory, score
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.events import EventWriter
from stages.training.worker_group.hardware import TrainHardware
from stages.training.worker_group.job_queue import JobQueue

_POLL_S = 0.02


class JobRunner:
    """Runs jobs and keeps the weights in memory from one job to the next.

    The constructor joins the process group of all workers (collective).

    Args:
        queue: Job queue of the worker group.
        rank: Number of this process among all of them.
    """

    def __init__(self, queue: JobQueue, rank: int) -> None:
        self._queue, self._rank = queue, rank
        self._hardware = queue.hardware()
        self._device = _device(self._hardware)
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        # A FileStore, because torch's other stores open a port.
        store = dist.FileStore(str(queue.meeting_file()), self._hardware.world)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(backend, store=store, rank=rank, world_size=self._hardware.world)
        self._weights: TrainedWeights | None = None

    def score(self, job: ScoreJob, events: EventWriter) -> None:
        """Runs one job that computes log-probabilities and reports its totals as an event (collective).

        Raises:
            BadInputError: The job, its batch or its checkpoint is invalid.
        """
        totals = score(job, self._device, shards(self._hardware, self._device), self._heartbeat)
        self._free_models()
        if self._rank == 0:
            events.send("done", **totals.model_dump())

    def train(self, job: TrainJob, events: EventWriter, job_number: int) -> None:
        """Runs one training job from loading to saving and reports its progress as events (collective).

        The event `done` reports that all results except the optimizer state are written, the event `state` that it is
        written too.

        Args:
            job: The job.
            events: Where it reports.
            job_number: Its number in the queue.

        Raises:
            BadInputError: The job, its batch, its checkpoint or its reference is invalid.
            DiskFullError: The disk has no room for the results.
        """
        started = time.perf_counter()
        shape = _shape_of(job)
        sharded = shards(self._hardware, self._device)
        batch = TrainerBatch(job.paths.batch_file, shape.vocab_size)
        _check_learning_rates(job, batch)
        weights = self._kept_weights(job, shape) or self._new_weights(job, shape, sharded)
        trainer = Trainer(weights, job, batch, self._heartbeat)
        resumed, start = _load(job, weights, trainer)
        self._check_memory(job, weights, batch)
        self._heartbeat()
        loaded = time.perf_counter()
        first, plan = self._rank == 0, trainer.steps()
        if first:
            tokens = sum(batch.row_tokens)
            events.send("started", steps=len(plan), rows=batch.shape[0], tokens=tokens, load_s=loaded - started)
            if resumed:
                events.send("resumed", steps=[step.model_dump() for step in resumed])
        reset_peak_memory(self._device)
        if not resumed:
            trainer.prepare(lambda: self._reference(job, shape, sharded))
            self._free_models()
        if job.paths.out_values_file is not None:
            values = trainer.kept_numbers()[OLD].view(batch.shape)
            if first:
                save_file({VALUES: values.contiguous()}, job.paths.out_values_file)
        recomputed = time.perf_counter()
        checkpoints = StepCheckpoints(job, weights, trainer, start)
        steps = self._steps(trainer, checkpoints, resumed, events)
        trained = time.perf_counter()
        lost = movement_lost(start, weights.sample())
        _save(weights, job)
        self._weights = weights
        totals = TrainTotals(
            tokens=sum(step.tokens for step in steps),
            loss_tokens=sum(step.loss_tokens for step in steps),
            tokens_per_s=sum(step.tokens for step in steps[len(resumed) :]) / max(trained - recomputed, 1e-9),
            peak_memory_bytes=peak_memory_bytes(self._device),
            load_s=loaded - started,
            old_logprobs_s=recomputed - loaded,
            train_s=trained - recomputed,
            save_s=time.perf_counter() - trained,
            movement_lost=lost,
        )
        self._end(weights, job, totals, events, job_number)

    def _steps(
        self, trainer: Trainer, checkpoints: StepCheckpoints, resumed: Sequence[StepMetrics], events: EventWriter
    ) -> list[StepMetrics]:
        """Takes the remaining steps, writes step checkpoints when they are due, and returns the metrics of all."""
        steps, plan = list(resumed), trainer.steps()
        for number, rows in plan[len(resumed) :]:
            steps.append(trainer.step(number, rows, len(plan)))
            if self._rank == 0:
                events.send("step", **steps[-1].model_dump())
            if number + 1 < len(plan) and checkpoints.due():
                folder = checkpoints.write(steps)
                if self._rank == 0:
                    events.send("step_checkpoint", step=number + 1, folder=str(folder))
        return steps

    def _end(
        self, weights: TrainedWeights, job: TrainJob, totals: TrainTotals, events: EventWriter, job_number: int
    ) -> None:
        """Reports the totals, and writes the optimizer state once the owner allows it."""
        if self._rank == 0:
            events.send("done", **totals.model_dump())
        if job.paths.out_state_dir is not None:
            while not self._queue.state_allowed(job_number):
                self._heartbeat()
                time.sleep(_POLL_S)
            with full_disk_reported(weights, job.paths.out_state_dir.parent):
                weights.save_state(job.paths.out_state_dir)
            if self._rank == 0:
                events.send("state")

    def free_cached_memory(self) -> None:
        """Returns memory of a GPU that no tensor uses, so that an engine can start beside these processes."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _reference(self, job: TrainJob, shape: DecoderShape, sharded: bool) -> Policy:
        assert job.paths.reference_dir is not None
        folder, vocabulary = job.paths.reference_dir, shape.vocab_size
        return load_reference(folder, vocabulary, job.hardware, self._device, sharded, self._heartbeat)

    def _heartbeat(self) -> None:
        self._queue.heartbeat(self._rank)

    def _kept_weights(self, job: TrainJob, shape: DecoderShape) -> TrainedWeights | None:
        """Returns the weights in memory, or None if there are none that fit the job's model and precision.

        Raises:
            BadInputError: The job is warm, and no weights in memory fit.
        """
        weights = self._weights
        expected = (
            shape,
            job.settings.trainable,
            job.settings.optimizer.master_dtype,
            compute_dtype(job.hardware, shape),
        )
        if weights is not None and (weights.shape, weights.trainable, weights.master_dtype, weights.dtype) != expected:
            weights = None
        if job.warm and weights is None:
            raise BadInputError(
                "warm", "no such model in the workers' memory", "a model that an earlier job left", "set warm to false"
            )
        return weights

    def _new_weights(self, job: TrainJob, shape: DecoderShape, sharded: bool) -> TrainedWeights:
        self._weights = None
        self._free_models()  # the weights of an earlier job, before the new ones are built
        settings = job.settings
        return TrainedWeights(
            shape, job.hardware, self._device, sharded, settings.trainable, self._heartbeat,
            settings.optimizer.master_dtype,
        )  # fmt: skip

    def _free_models(self) -> None:
        """Frees models without a reference that are cycles: compiled layers on GPUs, and with the hooks of FSDP2."""
        if self._device.type == "cuda" or self._hardware.world > 1:
            gc.collect()

    def _check_memory(self, job: TrainJob, weights: TrainedWeights, batch: TrainerBatch) -> None:
        """Raises BadInputError if the longest row of the batch does not fit into memory beside the weights."""
        token = least_activation_bytes_a_token(
            weights.shape, job.settings.trainable, weights.dtype.itemsize,
            checkpointing=job.hardware.activation_checkpointing, tensor_parallel=job.hardware.tensor_parallel,
        )  # fmt: skip
        check_rows_fit(batch.row_tokens, token, free_bytes(weights, self._device), job.paths.batch_file)


def _shape_of(job: TrainJob) -> DecoderShape:
    """Returns the shape of the job's model, with its value head if it trains one."""
    folder, value = job.paths.checkpoint_dir, job.settings.value
    shape = replace(read_shape(folder), value_head=value.head if value else None)
    if shape.value_head:
        check_value_head(folder, shape)
    return shape


def _device(hardware: TrainHardware) -> torch.device:
    """Returns this process's device; sets the CPU threads or the current CUDA device."""
    if hardware.device == "cuda" or (hardware.device == "auto" and torch.cuda.is_available()):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(hardware.threads or max(1, usable_cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    return torch.device("cpu")


def _check_learning_rates(job: TrainJob, batch: TrainerBatch) -> None:
    step_count = len(batch.steps) * job.settings.epochs
    if len(job.settings.learning_rates) != step_count:
        raise BadInputError(
            "learning_rates",
            f"{len(job.settings.learning_rates)} values",
            f"{step_count} ({job.settings.epochs} epochs x {len(batch.steps)} steps)",
        )


def _load(
    job: TrainJob, weights: TrainedWeights, trainer: Trainer
) -> tuple[list[StepMetrics], dict[str, torch.Tensor]]:
    """Loads the job's starting state.

    Returns:
        Metrics of the steps that it already contains, and a sample of the weights before the first of all steps.
    """
    if job.paths.resume_dir is not None:
        return resume(job.paths.resume_dir, weights, trainer, job.paths.checkpoint_dir)
    if job.paths.state_dir is not None:
        weights.load_state(job.paths.state_dir, job.paths.checkpoint_dir)
    elif not job.warm:
        weights.load_checkpoint(job.paths.checkpoint_dir)
    return [], weights.sample()


def _save(weights: TrainedWeights, job: TrainJob) -> None:
    paths, decay = job.paths, job.settings.reference_decay
    with full_disk_reported(weights, paths.out_checkpoint_dir.parent):
        weights.save_checkpoint(paths.checkpoint_dir, paths.out_checkpoint_dir)
        if decay is not None:
            assert paths.reference_dir is not None and paths.out_reference_dir is not None  # checked by the job
            weights.save_average(paths.reference_dir, decay, paths.out_reference_dir)
