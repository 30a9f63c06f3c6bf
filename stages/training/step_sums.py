"""Sums and maxima for the metrics of one optimizer step, over its micro-batches and then over processes.

They stay on the device until `reduce`, because each number that the host reads makes it wait for the device.
"""

import math
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from stages.grpo.loss import TokenLoss
from stages.grpo.ratios import importance_ratio
from stages.training.job import LossConfig
from stages.training.results import StepMetrics

_SUMS = (
    "policy_loss", "kl", "positive_nll", "entropy", "ratio", "clipped_low", "clipped_high", "loss_tokens", "tokens",
    "gap", "gap_tokens", "sampler_ratio", "sampler_ratio_squared",
)  # fmt: skip
_MAXIMA = ("ratio", "gap", "sampler_ratio")
_CPU = torch.device("cpu")


class StepSums:
    """Accumulates the metrics of an optimizer step.

    Shapes: C tokens in the loss of a micro-batch.

    Args:
        device: Device of the losses.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device
        self._shares: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._highest: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._sums: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def add(self, token: TokenLoss, entropies: Tensor, gap: Tensor | None, tokens: int) -> None:
        """Adds a micro-batch.

        Args:
            token: Losses and ratios of its tokens.
            entropies: [C].
            gap: [C] log-probabilities of the trainer minus those of the sampler; None if they are not comparable.
            tokens: Number of its tokens, prompts included.
        """
        self._sum("entropy", entropies)
        self._sum("ratio", token.ratio)
        self._sum("clipped_low", token.clipped_low)
        self._sum("clipped_high", token.clipped_high)
        self._counts["loss_tokens"] += token.ratio.numel()
        self._counts["tokens"] += tokens
        self._maximum("ratio", token.ratio)
        if gap is not None:
            importance = importance_ratio(gap.double())
            self._sum("gap", gap.abs())
            self._sum("sampler_ratio", importance)
            self._sum("sampler_ratio_squared", importance.square())
            self._counts["gap_tokens"] += gap.numel()
            self._maximum("gap", gap.abs())
            self._maximum("sampler_ratio", importance)

    def add_losses(self, policy_loss: Tensor, kl: Tensor | None, positive_nll: Tensor | None = None) -> None:
        """Adds a micro-batch's shares of the step's loss, divergence and `positive_nll`: scalars, None where absent."""
        for name, share in (("policy_loss", policy_loss), ("kl", kl), ("positive_nll", positive_nll)):
            if share is not None:
                self._sum(name, share)

    def _sum(self, name: str, values: Tensor) -> None:
        self._shares[name].append(values.detach().sum())

    def _maximum(self, name: str, values: Tensor) -> None:
        if values.numel():
            self._highest[name].append(values.detach().max())

    def _total(self, name: str) -> Tensor:
        """Returns a sum, float64 [1]."""
        if shares := self._shares[name]:
            return torch.stack(shares).double().sum(0, keepdim=True)
        return torch.full((1,), self._counts[name], dtype=torch.float64, device=self._device)

    def _maximum_of(self, name: str) -> Tensor:
        """Returns a maximum, float64 [1]: at least 0, and without the micro-batches whose own is NaN."""
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        highest = torch.stack([zero, *(x.double() for x in self._highest[name])])
        return torch.where(highest.isnan(), 0.0, highest).max(0, keepdim=True).values

    def reduce(self, norm: Tensor) -> float:
        """Combines the sums and maxima of all processes, and brings all numbers of the step to the host (collective).

        This is the only place of a step where the host waits until a GPU has computed everything.

        Args:
            norm: Scalar, the norm of the gradient, which the host reads with the rest.

        Returns:
            The norm.
        """
        sums = torch.cat([self._total(name) for name in _SUMS])
        maxima = torch.cat([self._maximum_of(name) for name in _MAXIMA])
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
            dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        norm = norm.to(self._device, torch.float64, non_blocking=True)
        numbers: list[float] = torch.cat([sums, maxima, norm.view(1)]).cpu().tolist()
        self._sums = dict(zip(_SUMS, numbers[: len(_SUMS)], strict=True))
        self._maxima = dict(zip(_MAXIMA, numbers[len(_SUMS) : -1], strict=True))
        return numbers[-1]

    def metrics(
        self,
        loss: LossConfig,
        at: tuple[int, int],
        norm: float,
        rate: float,
        seconds: float,
        *,
        with_kl: bool,
        kl_penalty: float | None = None,
    ) -> StepMetrics:
        """Returns the metrics of the step, from the numbers that `reduce` brought to the host.

        Args:
            loss: Settings of the loss, for its coefficients.
            at: Number of the step, from 1, and number of steps.
            norm: Norm of the gradient; if it is not finite, the step was skipped.
            rate: Learning rate.
            seconds: Wall time of the step.
            with_kl: Whether there is a reference.
            kl_penalty: Mean reward that completions lost for the divergence; None if it is not in the reward.
        """
        sums, maxima, gap_tokens = self._sums, self._maxima, self._sums["gap_tokens"]
        loss_tokens = max(1.0, sums["loss_tokens"])
        entropy = sums["entropy"] / loss_tokens
        kl_coef = loss.kl_coef if loss.kl_place == "loss" else 0.0
        skipped = not math.isfinite(norm)
        loss_sum = sums["policy_loss"] + kl_coef * sums["kl"] - loss.entropy_coef * entropy
        squares = gap_tokens * sums["sampler_ratio_squared"]
        return StepMetrics(
            step=at[0],
            of=at[1],
            skipped=skipped,
            loss=None if skipped else loss_sum + loss.positive_nll * sums["positive_nll"],
            policy_loss=None if skipped else sums["policy_loss"],
            entropy=entropy,
            kl=sums["kl"] if with_kl and not skipped else None,
            kl_penalty=kl_penalty,
            positive_nll=sums["positive_nll"] if loss.positive_nll and not skipped else None,
            grad_norm=norm,
            learning_rate=rate,
            ratio_mean=sums["ratio"] / loss_tokens,
            ratio_max=maxima["ratio"],
            clip_low_fraction=sums["clipped_low"] / loss_tokens,
            clip_high_fraction=sums["clipped_high"] / loss_tokens,
            sampler_gap_mean=sums["gap"] / gap_tokens if gap_tokens else None,
            sampler_gap_max=maxima["gap"] if gap_tokens else None,
            sampler_ratio_mean=sums["sampler_ratio"] / gap_tokens if gap_tokens else None,
            sampler_ratio_max=maxima["sampler_ratio"] if gap_tokens else None,
            sampler_ess=sums["sampler_ratio"] ** 2 / squares if gap_tokens else None,
            tokens=int(sums["tokens"]),
            loss_tokens=int(sums["loss_tokens"]),
            seconds=seconds,
            tokens_per_s=sums["tokens"] / max(seconds, 1e-9),
        )
