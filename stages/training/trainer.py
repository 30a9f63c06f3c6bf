"""One job on one worker process: micro-batches, loss, optimizer steps, metrics.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from artifacts.errors import NEW_RUN, BadInputError
from artifacts.tensors import RIGHT
from stages.grpo.aggregation import token_shares
from stages.grpo.divergence import divergence
from stages.grpo.loss import TokenLoss, token_loss
from stages.grpo.ratios import correction_factors
from stages.training.epochs import epoch_steps
from stages.training.job import TrainJob
from stages.training.kl_reward import KLReward
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import Policy
from stages.training.model.transfer import Pace, to_device
from stages.training.results import StepMetrics
from stages.training.step_sums import StepSums
from stages.training.trainer_batch import FlatRows, TrainerBatch, micro_batches


@dataclass(frozen=True)
class MicroBatchLoss:
    """The loss of a micro-batch, and its parts for the metrics.

    Attributes:
        total: Scalar that is minimised; the sum over micro-batches and processes is the loss of the step.
        policy: Scalar, the aggregated token loss.
        kl: Scalar, the aggregated divergence from the reference; None without a reference.
        token: [C] losses and ratios.
        entropies: [C] of the predicting distributions.
        gap: [C] log-probabilities of the trainer minus those of the sampler; None if they are not comparable.
        positive_nll: Scalar, the mean negative log-probability of right completions; None if the loss has no such term.
    """

    total: Tensor
    policy: Tensor
    kl: Tensor | None
    token: TokenLoss
    entropies: Tensor
    gap: Tensor | None
    positive_nll: Tensor | None = None


class Trainer:
    """Runs the optimizer steps of a job.

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
        self._weights, self._job, self._batch, self._heartbeat = weights, job, batch, heartbeat
        self._row_share = job.hardware.row_share(dist.get_rank(), dist.get_world_size())
        self.skipped: list[int] = []
        rows, width = batch.shape
        self._old: Tensor = torch.full((rows * width,), torch.nan, device=weights.device)
        """[R * T] log-probabilities under the starting weights by address, on the device; NaN where this process
        computed none."""
        self._reference: Tensor | None = None
        """[R * T] log-probabilities under the reference, likewise; None without a reference."""
        self._kl_reward: KLReward | None = None
        """The divergence as part of the reward; None if it is not part of it."""

    def steps(self) -> list[tuple[int, list[int]]]:
        """Returns the optimizer steps in order: number from 0, and rows."""
        passes = epoch_steps(self._batch, self._job.epochs, self._job.epoch_order, self._job.epoch_seed)
        return list(enumerate(rows for steps in passes for rows in steps))

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
        job, batch, device = self._job, self._batch, self._weights.device
        if number == len(batch.steps):
            self._share_logprobs()
        addresses, sequences = batch.loss_sequences(rows)
        groups = batch.groups(addresses) if job.loss.aggregation == "group_mean" else None
        factors = token_shares(job.loss.aggregation, sequences, job.loss.constant_tokens, batch.mean_length, groups)
        right_tokens = max(1, int(batch.values(RIGHT, addresses).sum()))
        sums, pace = StepSums(device), Pace(device)
        for micro in self._own_micro_batches(rows):
            flat = batch.flat(micro or rows[:1])
            factor = factors[torch.searchsorted(addresses, flat.addresses)]
            entropy_factor = torch.full_like(factor, 1.0 / max(1, addresses.numel()))
            right_factor = batch.values(RIGHT, flat.addresses) / right_tokens
            if not micro:  # this process has fewer rows than others; it takes part in the collectives with weight 0
                factor, entropy_factor, right_factor = (torch.zeros_like(factor) for _ in range(3))
            loss = self._loss(number, flat, *(to_device(x, device) for x in (factor, entropy_factor, right_factor)))
            # FSDP2 divides the gradients' sum over the row shares by their number, but the loss is a sum.
            (loss.total * self._row_share.count).backward()
            if micro and self._row_share.is_first:
                sums.add(loss.token, loss.entropies, loss.gap, flat.tokens.numel())
                sums.add_losses(loss.policy, loss.kl, loss.positive_nll)
            pace.keep()
            self._heartbeat()
        rate = job.learning_rates[number]
        gradient_norm = self._weights.gradient_norm()
        norm = sums.reduce(gradient_norm)
        if math.isfinite(norm):
            self._weights.step(job.optimizer, rate, gradient_norm)
        else:
            self._weights.drop_gradient()
            self._skip(number + 1, of, norm)
        seconds = time.perf_counter() - started
        return sums.metrics(
            job.loss,
            (number + 1, of),
            norm,
            rate,
            seconds,
            with_kl=self._reference is not None,
            kl_penalty=None if self._kl_reward is None else self._kl_reward.penalty(addresses, sequences),
        )

    def _loss(
        self, number: int, flat: FlatRows, factor: Tensor, entropy_factor: Tensor, right_factor: Tensor
    ) -> MicroBatchLoss:
        """Computes the loss of a micro-batch.

        Args:
            number: Number of the optimizer step, from 0.
            flat: The rows of the micro-batch.
            factor: [C] factor of each token's loss in the loss of the step.
            entropy_factor: [C] factor of each token's entropy in the entropy bonus of the step.
            right_factor: [C] factor of each token's negative log-probability in the mean over right completions.
        """
        config, device = self._job.loss, self._weights.device
        logprobs, entropies = self._forward(flat, self._weights.policy)
        addresses, sampler = to_device(flat.addresses, device), to_device(flat.sampler_logprobs, device)
        old, gap = self._old_logprobs(addresses, logprobs, sampler, number)
        sequences, token_weights = to_device(flat.sequences, device), to_device(flat.weights, device)
        advantages = flat.advantages
        if self._kl_reward is not None:
            advantages = advantages - self._kl_reward.penalties[flat.addresses]
        token = token_loss(
            config.kind,
            logprobs,
            old,
            to_device(advantages, device),
            token_weights,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            sequences=sequences,
            dual_clip=config.dual_clip,
            correction=correction_factors(
                config.importance_correction,
                old,
                sampler,
                sequences,
                config.importance_floor,
                config.importance_cap,
            ),
        )
        policy = (token.loss * factor).sum()
        total, kl = policy, None
        if self._reference is not None:
            estimate = divergence(config.kl_estimator, logprobs, self._reference[addresses], old, config.kl_clamp)
            kl = (estimate * token_weights * factor).sum()
            if config.kl_coef and config.kl_place == "loss":
                total = total + config.kl_coef * kl
        if config.entropy_coef:
            total = total - config.entropy_coef * (entropies * entropy_factor).sum()
        positive = None
        if config.positive_nll:
            positive = -(logprobs * right_factor).sum()
            total = total + config.positive_nll * positive
        return MicroBatchLoss(total, policy, kl, token, entropies, gap, positive)

    def _forward(self, flat: FlatRows, policy: Policy) -> tuple[Tensor, Tensor]:
        inputs = policy.inputs(flat, self._weights.dtype, self._weights.device)
        head_dtype = torch.float32 if self._job.loss.head_dtype == "fp32" else None
        return policy(inputs, self._job.loss.temperature, head_dtype)

    def _old_logprobs(
        self, addresses: Tensor, logprobs: Tensor, sampler: Tensor, number: int
    ) -> tuple[Tensor, Tensor | None]:
        """Returns two [C] tensors: the old log-probabilities of the ratio, and the gap trainer - sampler.

        The gap compares log-probabilities under the starting weights; it is None if they are not comparable. All
        tensors are on the device.
        """
        if self._job.loss.kind == "cross_entropy":
            return logprobs.detach(), None
        if number == 0:
            start = logprobs.detach()
            self._old.index_copy_(0, addresses, start)
        elif self._job.loss.old_logprobs == "sampler":
            return sampler, None
        else:
            start = self._old[addresses]
        old = sampler if self._job.loss.old_logprobs == "sampler" else start
        return old, start - sampler if self._job.loss.temperature_of == "sampler" else None

    def _skip(self, step: int, of: int, norm: float) -> None:
        """Counts a step whose gradient was dropped.

        Raises:
            BadInputError: As many steps as allowed were skipped before.
        """
        skipped, limit = self.skipped, self._job.optimizer.max_skipped_steps
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

    def _own_micro_batches(self, rows: list[int]) -> list[list[int]]:
        """Returns the micro-batches of a mini-batch that this process computes, each as a list of rows."""
        limit, share = self._job.hardware.micro_batch_tokens, self._row_share
        return micro_batches(rows, self._batch.row_tokens, share.count, limit)[share.number]

    def recompute_old_logprobs(self) -> None:
        """Computes the log-probabilities under the starting weights for every mini-batch but the first (collective).

        The first mini-batch is trained with the starting weights, so its own forward pass yields them. A divergence in
        the reward needs them before training starts, so then the first mini-batch is computed here too.
        """
        first = 0 if self._job.loss.kl_place != "loss" else 1
        self._fill_logprobs(self._weights.policy, self._batch.steps[first:], self._old)

    def compute_reference_logprobs(self, reference: Policy) -> None:
        """Computes the log-probabilities under the reference, which is not needed afterwards (collective)."""
        self._reference = torch.full_like(self._old, torch.nan)
        self._fill_logprobs(reference, self._batch.steps, self._reference)
        if self._job.loss.kl_place != "loss":
            self._kl_reward = KLReward(self._job.loss, self._batch, self._old.cpu(), self._reference.cpu())

    def _fill_logprobs(self, policy: Policy, steps: list[list[int]], logprobs: Tensor) -> None:
        """Sets the log-probabilities of some mini-batches' tokens under a policy, by address."""
        pace = Pace(self._weights.device)
        with torch.no_grad():
            for rows in steps:
                for micro in self._own_micro_batches(rows):
                    flat = self._batch.flat(micro or rows[:1])
                    logprobs.index_copy_(0, to_device(flat.addresses, logprobs.device), self._forward(flat, policy)[0])
                    pace.keep()
                    self._heartbeat()

    def kept_logprobs(self) -> dict[str, Tensor]:
        """Returns the log-probabilities that all processes have computed so far (collective).

        Returns:
            `old` (starting weights), `reference` and, for a divergence in the reward, those of `KLReward.tensors`:
            [R * T] each on the CPU, by address, NaN where unknown.
        """
        rows, width = self._batch.shape
        # A process without rows computed those of another one, so a row counts only for the process that it belongs to.
        own = torch.zeros(rows, dtype=torch.bool)
        for step in self._batch.steps:
            for micro in self._own_micro_batches(step):
                own[micro] = True
        own = own.repeat_interleave(width)
        logprobs: dict[str, Tensor] = {}
        for name, values in (("old", self._old), ("reference", self._reference)):
            if values is not None:
                mine = values.cpu()
                merged = torch.where(own & mine.isfinite(), mine, -torch.inf)
                dist.all_reduce(merged, op=dist.ReduceOp.MAX)
                logprobs[name] = merged.masked_fill_(merged == -torch.inf, torch.nan)
        return logprobs if self._kl_reward is None else logprobs | self._kl_reward.tensors()

    def restore_logprobs(self, logprobs: dict[str, Tensor], where: str) -> None:
        """Sets the log-probabilities to those that `kept_logprobs` returned, for any number of processes.

        Args:
            logprobs: The tensors.
            where: Name of their source, for errors.

        Raises:
            BadInputError: They belong to another batch, or lack the reference that the job has.
        """
        names = {"old", "reference"} if self._job.reference_dir else {"old"}
        if self._job.reference_dir and self._job.loss.kl_place != "loss":
            names |= {"kl_divergences", "kl_advantages"}
        if logprobs.keys() != names or any(values.shape != self._old.shape for values in logprobs.values()):
            tensors = ", ".join(f"{name} {list(values.shape)}" for name, values in logprobs.items())
            raise BadInputError(where, tensors, f"{', '.join(sorted(names))} {list(self._old.shape)}")
        device, reference = self._weights.device, logprobs.get("reference")
        self._old = logprobs["old"].to(device)
        self._reference = None if reference is None else reference.to(device)
        self._kl_reward = KLReward.restored(logprobs) if "kl_advantages" in logprobs else None

    def write_values(self) -> None:
        """Does nothing: a policy has no values. `ValueTrainer` writes them here."""

    def _share_logprobs(self) -> None:
        """Gives every process the log-probabilities of all rows after the first epoch (collective).

        In later epochs a row may be trained by another process than in the first.
        """
        if self._row_share.count > 1:
            self.restore_logprobs(self.kept_logprobs(), "log-probabilities of the first epoch")
