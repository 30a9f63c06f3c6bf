"""One job on one process of the gang: micro-batches, loss, optimizer steps, metrics.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from stages.grpo.loss import TokenLoss, token_loss, token_shares, truncated_importance
from stages.training.job import LossConfig, StepMetrics, TrainJob
from stages.training.packed import FlatRows, PackedBatch, micro_batches
from stages.training.weights import TrainedWeights


class Trainer:
    """Runs the optimizer steps of a job.

    Args:
        weights: what is trained; changed in place.
        job: what to do.
        batch: the job's batch.
        beat: called after each micro-batch, to show that there is progress.
    """

    def __init__(self, weights: TrainedWeights, job: TrainJob, batch: PackedBatch, beat: Callable[[], None]) -> None:
        self._weights, self._job, self._batch, self._beat = weights, job, batch, beat
        self._world, self._rank = dist.get_world_size(), dist.get_rank()
        rows, width = batch.shape
        self._old: Tensor = torch.full((rows * width,), torch.nan)
        """Log-probabilities under the starting weights by address, NaN where not (yet) computed by this process."""

    def _share(self, rows: list[int]) -> list[list[int]]:
        plan = micro_batches(rows, self._batch.row_tokens, self._world, self._job.hardware.micro_batch_tokens)
        return plan[self._rank]

    def _forward(self, flat: FlatRows) -> tuple[Tensor, Tensor]:
        weights = self._weights
        inputs = weights.policy.inputs(flat, weights.dtype, weights.device)
        return weights.policy(inputs, self._job.loss.temperature)

    def recompute_old_logprobs(self) -> None:
        """Fills in log-probabilities under the starting weights for every mini-batch but the first.

        The first is trained before anything has moved, so its own forward pass yields them.
        """
        with torch.no_grad():
            for rows in self._batch.steps[1:]:
                for micro in self._share(rows):
                    flat = self._batch.flat(micro or rows[:1])
                    logprobs, _ = self._forward(flat)
                    self._old[flat.addresses] = logprobs.cpu()
                    self._beat()

    def steps(self) -> "list[tuple[int, list[int]]]":
        """The optimizer steps in order: number from 0, rows."""
        return list(enumerate(self._batch.steps * self._job.epochs))

    def step(self, number: int, rows: list[int], of: int) -> StepMetrics:
        """Takes one optimizer step.

        Args:
            number: from 0, over all epochs.
            rows: of this mini-batch.
            of: optimizer steps of the job.

        Returns:
            Metrics over all processes.
        """
        started = time.perf_counter()
        job, batch, device = self._job, self._batch, self._weights.device
        addresses, sequences = batch.loss_sequences(rows)
        shares = token_shares(job.loss.aggregation, sequences, job.loss.constant_tokens)
        gathered = _Sums()
        for micro in self._share(rows):
            flat = batch.flat(micro or rows[:1])
            share = shares[torch.searchsorted(addresses, flat.addresses)]
            entropy_share = torch.full_like(share, 1.0 / max(1, addresses.numel()))
            if not micro:
                share, entropy_share = torch.zeros_like(share), torch.zeros_like(share)
            logprobs, entropies = self._forward(flat)
            old, gap = self._references(flat, logprobs, number)
            loss_config = job.loss
            correction = None
            if loss_config.importance_correction == "token_truncate":
                correction = truncated_importance(old, flat.sampler_logprobs.to(device), loss_config.importance_cap)
            token = token_loss(
                loss_config.kind,
                logprobs,
                old,
                flat.advantages.to(device),
                flat.weights.to(device),
                clip_low=loss_config.clip_low,
                clip_high=loss_config.clip_high,
                correction=correction,
            )
            share, entropy_share = share.to(device), entropy_share.to(device)
            policy_loss = (token.loss * share).sum()
            loss = policy_loss
            if loss_config.entropy_coef:
                loss = loss - loss_config.entropy_coef * (entropies * entropy_share).sum()
            (loss * self._world).backward()
            if micro:
                gathered.add(policy_loss.detach(), entropies.detach(), token, gap, flat.tokens.numel())
            self._beat()
        total = gathered.reduced(device)
        rate = job.learning_rates[number]
        norm = self._weights.step(job.optimizer, rate)
        seconds = time.perf_counter() - started
        return total.metrics(job.loss, (number + 1, of), norm, rate, seconds)

    def _references(self, flat: FlatRows, logprobs: Tensor, number: int) -> tuple[Tensor, Tensor | None]:
        """Old log-probabilities of the ratio, and trainer - sampler under the starting weights where known."""
        sampler = flat.sampler_logprobs
        if self._job.loss.kind == "cross_entropy":
            return logprobs.detach(), None
        if number == 0:
            start = logprobs.detach().cpu()
            self._old[flat.addresses] = start
        elif self._job.loss.old_logprobs == "sampler":
            return sampler.to(logprobs.device), None
        else:
            start = self._old[flat.addresses]
        old = sampler if self._job.loss.old_logprobs == "sampler" else start
        return old.to(logprobs.device), start - sampler


class _Sums:
    """Sums and maxima over the micro-batches of a step, then over processes."""

    def __init__(self) -> None:
        self.sums = torch.zeros(9, dtype=torch.float64)
        self.tops = torch.zeros(2, dtype=torch.float64)

    def add(self, policy_loss: Tensor, entropies: Tensor, token: TokenLoss, gap: Tensor | None, tokens: int) -> None:
        gaps = (0.0, 0.0) if gap is None else (float(gap.abs().sum()), float(gap.numel()))
        marks = (float(token.ratio.sum()), float(token.clipped_low.sum()), float(token.clipped_high.sum()))
        count = token.ratio.numel()
        values = float(policy_loss), float(entropies.sum()), *marks, float(count), float(tokens), *gaps
        self.sums += torch.tensor(values, dtype=torch.float64)
        if count:
            top_gap = 0.0 if gap is None else float(gap.abs().max())
            self.tops = torch.maximum(self.tops, torch.tensor([float(token.ratio.max()), top_gap], dtype=torch.float64))

    def reduced(self, device: torch.device) -> "_Sums":
        if dist.get_world_size() > 1:
            sums, tops = self.sums.to(device), self.tops.to(device)
            dist.all_reduce(sums)
            dist.all_reduce(tops, op=dist.ReduceOp.MAX)
            self.sums, self.tops = sums.cpu(), tops.cpu()
        return self

    def metrics(self, loss: LossConfig, at: tuple[int, int], norm: float, rate: float, seconds: float) -> StepMetrics:
        policy_loss, entropy, ratio, low, high, count, tokens, gap, gap_count = self.sums.tolist()
        each = max(1.0, count)
        return StepMetrics(
            step=at[0],
            of=at[1],
            loss=policy_loss - loss.entropy_coef * entropy / each,
            policy_loss=policy_loss,
            entropy=entropy / each,
            grad_norm=norm,
            learning_rate=rate,
            ratio_mean=ratio / each,
            ratio_max=float(self.tops[0]),
            clip_low_fraction=low / each,
            clip_high_fraction=high / each,
            sampler_gap_mean=gap / gap_count if gap_count else None,
            sampler_gap_max=float(self.tops[1]) if gap_count else None,
            tokens=int(tokens),
            loss_tokens=int(count),
            seconds=seconds,
            tokens_per_s=tokens / max(seconds, 1e-9),
        )
