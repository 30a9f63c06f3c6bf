"""The step loop of one job on one worker process: micro-batches, gradient, optimizer, metrics.

Shapes: R rows, T tokens of a padded row.
"""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from artifacts.errors import NEW_RUN, BadInputError
from stages.training.epochs import epoch_steps
from stages.training.job import TrainJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import DecoderModel, Policy
from stages.training.model.transfer import to_device
from stages.training.objectives.objective import OLD, REFERENCE, MicroBatch, Objective, Outputs, Shares
from stages.training.objectives.policy import PolicyObjective
from stages.training.objectives.values import ValueObjective
from stages.training.results import StepMetrics
from stages.training.row_work import RowWork
from stages.training.step_sums import StepSums
from stages.training.trainer_batch import FlatRows, TrainerBatch


class Trainer:
    """Runs the optimizer steps of a job, each of which minimises the loss that the objective defines.

    Args:
        weights: The weights that are trained; changed in place.
        job: The job.
        batch: The job's batch.
        heartbeat: Called after each micro-batch to report progress.

    Attributes:
        skipped: Numbers, from 1, of the optimizer steps that were skipped because their gradient was not finite.
    """

    def __init__(
        self, weights: TrainedWeights, job: TrainJob, batch: TrainerBatch, heartbeat: Callable[[], None]
    ) -> None:
        self._weights, self._settings, self._batch = weights, job.settings, batch
        job.settings.loss.check_model(weights.policy.shape)
        self._work = RowWork(batch, job.hardware, weights.device, heartbeat)
        self._objective = _objective(job, batch, weights.device)
        self.skipped: list[int] = []

    def steps(self) -> list[tuple[int, list[int]]]:
        """Returns the optimizer steps in order: number from 0, and rows."""
        settings = self._settings
        passes = epoch_steps(self._batch, settings.epochs, settings.epoch_order, settings.epoch_seed)
        return list(enumerate(rows for steps in passes for rows in steps))

    def prepare(self, reference: Callable[[], Policy]) -> None:
        """Computes what the objective needs before the first step (collective).

        Args:
            reference: Loads the reference; it is called if the job has one, and not needed afterwards.
        """
        numbers = self._objective.numbers
        if OLD in numbers:
            self._fill(numbers[OLD], self._objective.old_steps, self._weights.policy)
        if REFERENCE in numbers:
            self._fill(numbers[REFERENCE], self._batch.steps, reference())
        self._objective.settle(self.kept_numbers())

    def _fill(self, numbers: Tensor, steps: list[list[int]], model: DecoderModel) -> None:
        self._work.fill(numbers, steps, lambda flat: self._outputs(model, flat).numbers)

    def _outputs(self, model: DecoderModel, flat: FlatRows) -> Outputs:
        return self._objective.outputs(model, model.inputs(flat, self._weights.dtype, self._weights.device))

    def step(self, number: int, rows: list[int], of: int) -> StepMetrics:
        """Takes one optimizer step, or skips it if the gradient is not finite (collective).

        Args:
            number: Number of the step, from 0, over all epochs.
            rows: Rows of the mini-batch.
            of: Number of optimizer steps of the job.

        Returns:
            Metrics over all processes.

        Raises:
            BadInputError: The gradient is not finite, and `max_skipped_steps` steps of the job were skipped before.
        """
        started = time.perf_counter()
        settings, weights, share = self._settings, self._weights, self._work.share
        if number == len(self._batch.steps) and share.count > 1:  # other processes may have computed these rows before
            self.restore_numbers(self.kept_numbers(), "numbers of the first epoch")
        addresses, sequences = self._batch.loss_sequences(rows)
        shares = Shares.of_step(self._batch, addresses, sequences, settings.loss)
        sums = StepSums(weights.device, own_names=settings.loss.function is not None)
        for flat, counted in self._work.of(rows):
            of_step = shares.at(torch.searchsorted(addresses, flat.addresses), weights.device, counted=counted)
            micro = MicroBatch(number, flat, to_device(flat.addresses, weights.device), of_step)
            loss = self._objective.loss(self._outputs(weights.policy, flat), micro)
            # FSDP2 divides the gradients' sum over the row shares by their number, but the loss is a sum.
            (loss.total * share.count).backward()
            counts = {"tokens": flat.tokens.numel(), "loss_tokens": flat.addresses.numel()}
            sums.add(loss, counted=counted and share.is_first, **counts)
        gradient_norm, rate = weights.gradient_norm(), settings.learning_rates[number]
        norm = sums.reduce(gradient_norm)
        finite = math.isfinite(norm)
        if finite:
            weights.step(settings.optimizer, rate, gradient_norm)
        else:
            weights.drop_gradient()
            self._skip(number + 1, of, norm)
        metrics = self._objective.metrics(sums.sums, sums.maxima, rows)
        seconds = time.perf_counter() - started
        return StepMetrics(
            **(metrics if finite else metrics.of_skipped_step()).model_dump(),
            step=number + 1,
            of=of,
            skipped=not finite,
            grad_norm=norm,
            learning_rate=rate,
            tokens=int(sums.sums["tokens"]),
            loss_tokens=int(sums.sums["loss_tokens"]),
            seconds=seconds,
            tokens_per_s=sums.sums["tokens"] / max(seconds, 1e-9),
        )

    def _skip(self, step: int, of: int, norm: float) -> None:
        """Counts a step whose gradient was dropped.

        Raises:
            BadInputError: As many steps as allowed were skipped before.
        """
        skipped, limit = self.skipped, self._settings.optimizer.max_skipped_steps
        if len(skipped) < limit:
            skipped.append(step)
            return
        also = f", and {len(skipped)} steps before it were skipped for the same reason: {skipped}" if skipped else ""
        raise BadInputError(
            f"optimizer step {step} of {of}",
            f"the norm of its gradient is {norm}{also}",
            "a finite number" + (f", except in at most {limit} steps (optimizer.max_skipped_steps)" if limit else ""),
            "try a lower learning_rate or a max_grad_norm; if the model or the batch holds such numbers from the "
            f"start, raise optimizer.max_skipped_steps; {NEW_RUN}",
        )

    def kept_numbers(self) -> dict[str, Tensor]:
        """Returns the objective's numbers that all processes have computed so far (collective).

        Returns:
            [R * T] each on the CPU, by address, NaN where unknown.
        """
        return {name: self._work.merged(numbers) for name, numbers in self._objective.numbers.items()}

    def restore_numbers(self, numbers: dict[str, Tensor], where: str) -> None:
        """Sets the objective's numbers to those that `kept_numbers` returned, for any number of processes.

        Args:
            numbers: The tensors.
            where: Name of their source, for errors.

        Raises:
            BadInputError: They belong to another batch, or to another objective.
        """
        shapes = {name: list(values.shape) for name, values in numbers.items()}
        expected = {name: list(values.shape) for name, values in self._objective.numbers.items()}
        if shapes != expected:
            raise BadInputError(where, f"{shapes}", f"{expected}")
        self._objective.settle(numbers)
        self._objective.numbers = {name: values.to(self._weights.device) for name, values in numbers.items()}


def _objective(job: TrainJob, batch: TrainerBatch, device: torch.device) -> Objective:
    if job.settings.value is not None:
        return ValueObjective(job.settings, job.settings.value, batch, device)
    with_reference = job.paths.reference_dir is not None
    return PolicyObjective(job.settings, batch, device, with_reference=with_reference)
