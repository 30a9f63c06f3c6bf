"""One job on one process of the gang: micro-batches, loss, optimizer steps, metrics.

Shapes: R rows, T tokens of a padded row, C tokens in the loss.
"""

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from artifacts.errors import BadInputError
from stages.grpo.aggregation import token_shares
from stages.grpo.divergence import divergence
from stages.grpo.loss import TokenLoss, token_loss
from stages.grpo.ratios import correction_factors
from stages.training.epochs import epoch_steps
from stages.training.job import TrainJob
from stages.training.kl_reward import KLReward
from stages.training.metrics import StepMetrics
from stages.training.model import Policy
from stages.training.packed import FlatRows, PackedBatch, micro_batches
from stages.training.step_sums import StepSums
from stages.training.weights import TrainedWeights


class Trainer:
    """Runs the optimizer steps of a job.

    Args:
        weights: what is trained; changed in place.
        job: what to do.
        batch: the job's batch.
        beat: called after each micro-batch, to show that there is progress.

    Attributes:
        skipped: optimizer steps, from 1, that changed nothing because their gradient was not finite.
    """

    def __init__(self, weights: TrainedWeights, job: TrainJob, batch: PackedBatch, beat: Callable[[], None]) -> None:
        self._weights, self._job, self._batch, self._beat = weights, job, batch, beat
        self._world, self._rank = dist.get_world_size(), dist.get_rank()
        self.skipped: list[int] = []
        rows, width = batch.shape
        self._old: Tensor = torch.full((rows * width,), torch.nan)
        """Log-probabilities under the starting weights by address, NaN where not (yet) computed by this process."""
        self._reference: Tensor | None = None
        """The same under the reference, where there is one."""
        self._kl_reward: KLReward | None = None
        """What the divergence takes off the advantages, where it is in the reward."""

    def _share(self, rows: list[int]) -> list[list[int]]:
        plan = micro_batches(rows, self._batch.row_tokens, self._world, self._job.hardware.micro_batch_tokens)
        return plan[self._rank]

    def _forward(self, flat: FlatRows, policy: Policy) -> tuple[Tensor, Tensor]:
        inputs = policy.inputs(flat, self._weights.dtype, self._weights.device)
        return policy(inputs, self._job.loss.temperature)

    def _logprobs(self, policy: Policy, steps: list[list[int]], into: Tensor) -> None:
        """Fills in the log-probabilities that a policy gives the tokens of some mini-batches, by address."""
        with torch.no_grad():
            for rows in steps:
                for micro in self._share(rows):
                    flat = self._batch.flat(micro or rows[:1])
                    logprobs, _ = self._forward(flat, policy)
                    into[flat.addresses] = logprobs.cpu()
                    self._beat()

    def recompute_old_logprobs(self) -> None:
        """Fills in log-probabilities under the starting weights for every mini-batch but the first.

        The first is trained before anything has moved, so its own forward pass yields them; a divergence in the reward
        asks for them before.
        """
        first = 0 if self._job.loss.kl_place != "loss" else 1
        self._logprobs(self._weights.policy, self._batch.steps[first:], self._old)

    def compute_reference_logprobs(self, reference: Policy) -> None:
        """Fills in the log-probabilities of the model that the KL term measures from; it is not needed afterwards."""
        self._reference = torch.full_like(self._old, torch.nan)
        self._logprobs(reference, self._batch.steps, self._reference)
        if self._job.loss.kl_place != "loss":
            self._kl_reward = KLReward(self._job.loss, self._batch, self._old, self._reference)

    def kept_logprobs(self) -> dict[str, Tensor]:
        """The log-probabilities under starting weights and reference as far as known, from all processes (collective).

        Returns:
            By name, [R * T] by address, NaN where unknown; with them what the divergence takes off the advantages.
        """
        rows, width = self._batch.shape
        mine = torch.zeros(rows, dtype=torch.bool)  # a process also has some of another's, where it had none of its own
        for step in self._batch.steps:
            for micro in self._share(step):
                mine[micro] = True
        mine = mine.repeat_interleave(width)
        kept: dict[str, Tensor] = {}
        for name, values in (("old", self._old), ("reference", self._reference)):
            if values is not None:
                whole = torch.where(mine & values.isfinite(), values, -torch.inf)
                dist.all_reduce(whole, op=dist.ReduceOp.MAX)
                kept[name] = whole.masked_fill_(whole == -torch.inf, torch.nan)
        return kept if self._kl_reward is None else kept | self._kl_reward.kept()

    def take_logprobs(self, kept: dict[str, Tensor], where: str) -> None:
        """Takes over what `kept_logprobs` gave, under any number of processes.

        Raises:
            BadInputError: it belongs to another batch, or lacks the reference that the job has.
        """
        names = {"old", "reference"} if self._job.reference_dir else {"old"}
        if self._job.reference_dir and self._job.loss.kl_place != "loss":
            names |= {"kl_divergences", "kl_advantages"}
        if kept.keys() != names or any(values.shape != self._old.shape for values in kept.values()):
            found = ", ".join(f"{name} {list(values.shape)}" for name, values in kept.items())
            raise BadInputError(where, found, f"{', '.join(sorted(names))} {list(self._old.shape)}")
        self._old, self._reference = kept["old"], kept.get("reference")
        self._kl_reward = KLReward.restored(kept) if "kl_advantages" in kept else None

    def steps(self) -> "list[tuple[int, list[int]]]":
        """The optimizer steps in order: number from 0, rows."""
        passes = epoch_steps(self._batch, self._job.epochs, self._job.epoch_order, self._job.epoch_seed)
        return list(enumerate(rows for steps in passes for rows in steps))

    def _share_logprobs(self) -> None:
        """Gives every process the log-probabilities of all rows, once each is known to one (collective).

        In the passes after the first a row may come to another process than in the first.
        """
        if self._world > 1:
            self.take_logprobs(self.kept_logprobs(), "log-probabilities of the first epoch")

    def step(self, number: int, rows: list[int], of: int) -> StepMetrics:
        """Takes one optimizer step, or skips it where the gradient is not finite.

        Args:
            number: from 0, over all epochs.
            rows: of this mini-batch.
            of: optimizer steps of the job.

        Returns:
            Metrics over all processes.

        Raises:
            BadInputError: The gradient is not finite, and `max_skipped_steps` were skipped before.
        """
        started = time.perf_counter()
        job, batch, device = self._job, self._batch, self._weights.device
        if number == len(batch.steps):
            self._share_logprobs()
        addresses, sequences = batch.loss_sequences(rows)
        groups = batch.groups(addresses) if job.loss.aggregation == "group_mean" else None
        shares = token_shares(job.loss.aggregation, sequences, job.loss.constant_tokens, batch.mean_length, groups)
        sums = StepSums()
        for micro in self._share(rows):
            flat = batch.flat(micro or rows[:1])
            share = shares[torch.searchsorted(addresses, flat.addresses)]
            entropy_share = torch.full_like(share, 1.0 / max(1, addresses.numel()))
            if not micro:
                share, entropy_share = torch.zeros_like(share), torch.zeros_like(share)
            share, entropy_share, token_weights = share.to(device), entropy_share.to(device), flat.weights.to(device)
            logprobs, entropies = self._forward(flat, self._weights.policy)
            old, gap = self._old_logprobs(flat, logprobs, number)
            token = self._token_loss(flat, logprobs, old)
            policy_loss = (token.loss * share).sum()
            loss, kl = policy_loss, None
            if self._reference is not None:
                reference = self._reference[flat.addresses].to(device)
                estimate = divergence(job.loss.kl_estimator, logprobs, reference, old, job.loss.kl_clamp)
                kl = (estimate * token_weights * share).sum()
            if kl is not None and job.loss.kl_coef and job.loss.kl_place == "loss":
                loss = loss + job.loss.kl_coef * kl
            if job.loss.entropy_coef:
                loss = loss - job.loss.entropy_coef * (entropies * entropy_share).sum()
            (loss * self._world).backward()
            if micro:
                sums.add(token, entropies, gap, flat.tokens.numel())
                sums.add_losses(policy_loss, kl)
            self._beat()
        sums.reduce(device)
        rate = job.learning_rates[number]
        norm = self._weights.step(job.optimizer, rate)
        if not math.isfinite(norm):
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

    def _skip(self, step: int, of: int, norm: float) -> None:
        """Counts a step whose gradient was dropped.

        Raises:
            BadInputError: So many were skipped before that the job ends.
        """
        before, most = self.skipped, self._job.optimizer.max_skipped_steps
        if len(before) < most:
            before.append(step)
            return
        also = f", and {len(before)} steps before it were skipped for the same reason: {before}" if before else ""
        raise BadInputError(
            f"optimizer step {step} of {of}",
            f"the norm of its gradient is {norm}{also}",
            "a finite number" + (f", but for at most {most} steps (optimizer.max_skipped_steps)" if most else ""),
            "try a lower learning_rate or a max_grad_norm; a model or a batch may also hold such numbers from the "
            "start, which optimizer.max_skipped_steps lets pass",
        )

    def _token_loss(self, flat: FlatRows, logprobs: Tensor, old: Tensor) -> TokenLoss:
        config, device = self._job.loss, self._weights.device
        sequences, advantages = flat.sequences.to(device), flat.advantages
        if self._kl_reward is not None:
            advantages = advantages - self._kl_reward.advantages[flat.addresses]
        return token_loss(
            config.kind,
            logprobs,
            old,
            advantages.to(device),
            flat.weights.to(device),
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            sequences=sequences,
            dual_clip=config.dual_clip,
            correction=correction_factors(
                config.importance_correction,
                old,
                flat.sampler_logprobs.to(device),
                sequences,
                config.importance_floor,
                config.importance_cap,
            ),
        )

    def _old_logprobs(self, flat: FlatRows, logprobs: Tensor, number: int) -> tuple[Tensor, Tensor | None]:
        """Old log-probabilities of the ratio, and trainer - sampler under the starting weights where comparable."""
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
        return old.to(logprobs.device), start - sampler if self._job.loss.temperature_of == "sampler" else None
