"""The objective of a policy: token losses of advantages, or of texts, with KL term, entropy bonus and positive NLL.

Shapes: C tokens in the loss of a micro-batch.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from stages.grpo.kl import divergence
from stages.grpo.loss import TokenLoss, token_loss
from stages.grpo.ratios import correction_factors, importance_ratio
from stages.training.job import JobSettings
from stages.training.model.policy import ModelInputs, Policy
from stages.training.model.transfer import to_device
from stages.training.objectives.kl_reward import KLReward
from stages.training.objectives.objective import OLD, REFERENCE, MicroBatch, Objective, Outputs, StepLoss
from stages.training.objectives.own_loss import OwnLoss, own_metrics
from stages.training.results import LossMetrics
from stages.training.trainer_batch import TrainerBatch


class PolicyObjective(Objective):
    """The losses of `stages.grpo.loss`. Those of texts need no numbers under the starting weights.

    Args:
        settings: How the job trains.
        batch: The whole batch.
        device: Device of the weights.
        with_reference: Whether the divergence from a reference is measured.
    """

    def __init__(
        self, settings: JobSettings, batch: TrainerBatch, device: torch.device, *, with_reference: bool
    ) -> None:
        super().__init__(settings, batch, device)
        self._config = settings.loss
        if self._config.old_logprobs == "trainer" and self._config.reads_old_logprobs:
            self.numbers[OLD] = self.unknown()
        if with_reference:
            self.numbers[REFERENCE] = self.unknown()
        self._own = OwnLoss(self._config.function) if self._config.function else None
        self._in_reward = with_reference and self._config.kl_place != "loss"
        self._kl_reward: KLReward | None = None

    @property
    def old_steps(self) -> list[list[int]]:
        """All mini-batches if the reward needs them, else all but the first, whose own forward pass yields them."""
        return super().old_steps[0 if self._in_reward else 1 :]

    def settle(self, numbers: Mapping[str, Tensor]) -> None:
        """Computes the divergence as part of the reward."""
        if self._in_reward:
            self._kl_reward = KLReward(self._config, self.batch, numbers.get(OLD), numbers[REFERENCE])

    def outputs(self, model: Policy, inputs: ModelInputs) -> Outputs:
        """Returns log-probabilities, entropies and the router's loss."""
        head_dtype = torch.float32 if self._config.head_dtype == "fp32" else None
        return Outputs(*model(inputs, self._config.temperature, head_dtype))

    def loss(self, outputs: Outputs, micro: MicroBatch) -> StepLoss:
        """Returns the token loss and the terms that are added to it, each aggregated over the step."""
        config, logprobs, entropies = self._config, outputs.numbers, outputs.entropies
        assert entropies is not None
        sampler = to_device(micro.flat.sampler_logprobs, self.device)
        old, gap = self._old(logprobs, sampler, micro)
        reference = self.numbers[REFERENCE][micro.addresses] if REFERENCE in self.numbers else None
        token, own = self._token_loss(logprobs, old, sampler, reference, micro)
        policy = total = (token.loss * micro.shares.loss).sum()
        sums: dict[str, Tensor | int] = {"policy_loss": policy, **own}
        if reference is not None:
            estimate = divergence(config.kl_estimator, logprobs, reference, old, config.kl_clamp)
            sums["kl"] = kl = (estimate * micro.shares.loss).sum()
            if config.kl_coef and not self._in_reward:
                total = total + config.kl_coef * kl
        if config.entropy_coef:
            total = total - config.entropy_coef * (entropies * micro.shares.mean).sum()
        if config.positive_nll:
            sums["positive_nll"] = positive = -(logprobs * micro.shares.right).sum()
            total = total + config.positive_nll * positive
        if outputs.router is not None:
            sums["router"] = router = (outputs.router * micro.shares.mean).sum()
            if config.router_aux_loss_coef:
                total = total + config.router_aux_loss_coef * router
        more, maxima = token_sums(token, entropies, gap)
        return StepLoss(total, {**sums, **more}, maxima)

    def _old(self, logprobs: Tensor, sampler: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """Returns two [C] tensors: the old log-probabilities of the ratio, and the gap trainer - sampler.

        The gap compares log-probabilities under the starting weights; it is None if they are not comparable.
        """
        if not self._config.reads_old_logprobs:
            return logprobs.detach(), None
        if self._config.old_logprobs == "sampler":
            return sampler, logprobs.detach() - sampler if micro.step == 0 else None
        if micro.step == 0 and not self._in_reward:
            self.numbers[OLD].index_copy_(0, micro.addresses, logprobs.detach())
        old = self.numbers[OLD][micro.addresses]
        return old, old - sampler if self._config.temperature_of == "sampler" else None

    def _token_loss(
        self, logprobs: Tensor, old: Tensor, sampler: Tensor, reference: Tensor | None, micro: MicroBatch
    ) -> tuple[TokenLoss, dict[str, Tensor]]:
        """Returns the losses of the tokens, and the sums of the metrics of a user's own loss."""
        config, advantages = self._config, micro.flat.advantages
        if self._kl_reward is not None:
            advantages = advantages - self._kl_reward.penalties[micro.flat.addresses]
        advantages = to_device(advantages, self.device)
        if self._own is not None:
            return self._own(logprobs, old, sampler, reference, advantages, micro.flat)
        sequences = to_device(micro.flat.sequences, self.device)
        token = token_loss(
            config.kind,
            logprobs,
            old,
            advantages,
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
        return token, {}

    def metrics(self, sums: Mapping[str, float], maxima: Mapping[str, float], rows: list[int]) -> LossMetrics:
        """Returns losses, ratios, clips, and the gap between trainer and sampler."""
        config, tokens = self._config, max(1.0, sums["loss_tokens"])
        entropy, kl, positive = sums["entropy"] / tokens, sums.get("kl"), sums.get("positive_nll")
        router = sums.get("router")
        in_loss = config.kl_coef * (kl or 0.0) if not self._in_reward else 0.0
        metrics = LossMetrics(
            loss=sums["policy_loss"]
            + in_loss
            - config.entropy_coef * entropy
            + config.positive_nll * (positive or 0.0)
            + config.router_aux_loss_coef * (router or 0.0),
            policy_loss=sums["policy_loss"],
            entropy=entropy,
            kl=kl,
            kl_penalty=self._kl_reward.penalty(*self.batch.loss_sequences(rows)) if self._kl_reward else None,
            positive_nll=positive,
            router_aux_loss=router,
            ratio_mean=sums["ratio"] / tokens,
            ratio_max=maxima["ratio"],
            clip_low_fraction=sums["clipped_low"] / tokens,
            clip_high_fraction=sums["clipped_high"] / tokens,
            own=own_metrics(sums),
        )
        return metrics.model_copy(update=gap_metrics(sums, maxima))


def token_sums(
    token: TokenLoss, entropies: Tensor, gap: Tensor | None
) -> tuple[dict[str, Tensor | int], dict[str, Tensor]]:
    """Returns the sums, and the values whose maxima are metrics, of the tokens of a micro-batch.

    Args:
        token: Ratios of its tokens.
        entropies: [C].
        gap: [C] log-probabilities of the trainer minus those of the sampler; None if they are not comparable.
    """
    sums: dict[str, Tensor | int] = {
        "entropy": entropies.detach().sum(),
        "ratio": token.ratio.sum(),
        "clipped_low": token.clipped_low.sum(),
        "clipped_high": token.clipped_high.sum(),
    }
    maxima = {"ratio": token.ratio}
    if gap is not None:
        importance = importance_ratio(gap.double())
        sums |= {
            "gap": gap.abs().sum(),
            "gap_tokens": gap.numel(),
            "sampler_ratio": importance.sum(),
            "sampler_ratio_squared": importance.square().sum(),
        }
        maxima |= {"gap": gap.abs(), "sampler_ratio": importance}
    return sums, maxima


def gap_metrics(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of the gap between trainer and sampler by name; none if it was not measured."""
    tokens = sums.get("gap_tokens")
    if not tokens:
        return {}
    squares = tokens * sums["sampler_ratio_squared"]
    return {
        "sampler_gap_mean": sums["gap"] / tokens,
        "sampler_gap_max": maxima["gap"],
        "sampler_ratio_mean": sums["sampler_ratio"] / tokens,
        "sampler_ratio_max": maxima["sampler_ratio"],
        "sampler_ess": sums["sampler_ratio"] ** 2 / squares,
    }
