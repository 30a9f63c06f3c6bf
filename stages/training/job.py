"""Settings of a training job. This module imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.errors import BadInputError
from stages.grpo.names import Aggregation, Correction, Estimator, KLPlace, LossKind
from stages.models.value_head import ValueHead
from stages.processes.user_file import UserFunction
from stages.training.trainable import TrainableConfig
from stages.training.worker_group.hardware import TrainHardware

if TYPE_CHECKING:
    from stages.models.shape import DecoderShape


class LossConfig(Config):
    """The loss of one token, its aggregation over tokens, and the terms that are added to it.

    `stages.grpo.loss.token_loss` has the formula of each kind, and `stages.grpo.aggregation.token_shares` that of each
    aggregation. Counts are over all rows of an optimizer step on all processes. `cross_entropy` reads no
    advantages, and old log-probabilities only to correct it.

    The entropy bonus is always a mean over tokens, and `positive_nll` weighs a mean over the tokens of right
    completions. The KL term is aggregated like the loss, without importance correction. A divergence in the reward is a
    constant, not a term of the loss; see `stages/grpo/kl_reward.py`.
    """

    kind: LossKind = Field(default="ppo_clip", description="loss of one token")
    function: UserFunction | None = Field(
        default=None,
        description="Your own loss of one token, FILE.py:NAME, in place of `kind` and its clips (docs/own_loss.md). It "
        "is aggregated, and the KL term and the entropy bonus are added, as for the others.",
    )
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(default=0.2, ge=0.0, le=1e6, description="the ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(
        default=None,
        gt=1.0,
        le=1e6,
        description="if A < 0, the ratio is also clipped above this (ppo_clip, gspo); null = off",
    )
    aggregation: Aggregation = Field(default="token_mean", description="divisor of the sum of token losses")
    constant_tokens: int | None = Field(
        default=None, ge=1, le=10_000_000, description="length by which `constant` divides"
    )
    old_logprobs: Literal["sampler", "trainer"] = Field(
        default="sampler", description="denominator of the ratio: the sampler's, or recomputed before the first update"
    )
    temperature: float = Field(
        default=1.0,
        gt=0.0,
        le=100.0,
        description="divisor of the logits of the policy, the old policy and the reference",
    )
    temperature_of: Literal["sampler", "loss"] = Field(
        default="sampler",
        description="`sampler`: the temperature must be the sampler's; `loss`: the loss has its own temperature, which "
        "needs old_logprobs = 'trainer'",
    )
    positive_nll: float = Field(
        default=0.0,
        ge=0.0,
        le=1e6,
        description="weight of the mean negative log-probability of the tokens of right completions (VAPO); needs "
        "pack.mark_right",
    )
    head_dtype: Literal["compute", "fp32"] = Field(
        default="compute",
        description="precision of the logits and the products with the output head; `compute`: that of the other "
        "layers. bf16 logits differ more from the sampler's",
    )
    entropy_coef: float = Field(
        default=0.0, ge=0.0, le=1e6, description="weight of the bonus for the mean token entropy"
    )
    router_aux_loss_coef: float = Field(
        default=0.0,
        ge=0.0,
        le=1e6,
        description="weight of the router's load-balancing loss in a model with experts: that of transformers for each "
        "prompt with its completion, mean over tokens",
    )
    kl_coef: float = Field(default=0.0, ge=0.0, le=1e6, description="weight of the divergence from the reference")
    kl_estimator: Estimator = Field(
        default="k3",
        description="with d = new - reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, "
        "unbiased_k3 = k3 exp(new - old)",
    )
    kl_clamp: float | None = Field(
        default=None,
        gt=0.0,
        le=1e6,
        description="the estimate at each token is clamped to +-kl_clamp and has no gradient outside; null = off",
    )
    kl_place: KLPlace = Field(
        default="loss",
        description="`loss`: the divergence is a term of the loss. Otherwise it is part of the reward: kl_coef times "
        "the divergence under the old log-probabilities is subtracted from the advantages. `token_reward`: the "
        "divergence of this token and the tokens after it; `sequence_reward`: that of the completion minus the mean of "
        "its group",
    )
    importance_correction: Correction = Field(
        default="none",
        description="factor of the loss: the importance exp(old - sampler) of the token, or its product over the "
        "completion. Outside importance_floor and importance_cap it is clamped (truncate) or 0 (mask)",
    )
    importance_floor: float = Field(default=0.0, ge=0.0, le=1e6, description="lower bound of the importance correction")
    importance_cap: float = Field(default=2.0, gt=0.0, le=1e6, description="upper bound of the importance correction")

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.function is not None:
            unread = ("kind", "clip_low", "clip_high", "dual_clip", "importance_correction")
            self.refuse_unread(unread, "on your own loss.function")
        if self.kind in ("cross_entropy", "reinforce", "tanh"):
            self.refuse_unread(("clip_low", "clip_high"), f"on the loss {self.kind}, which clips nothing")
        if self.importance_correction == "none":
            self.refuse_unread(("importance_floor", "importance_cap"), "without importance_correction")
        if self.temperature_of == "loss" and self.importance_correction != "none":
            raise ValueError(
                "importance_correction compares with the sampler's log-probabilities, which have the sampler's "
                "temperature: it needs temperature_of 'sampler'"
            )
        if (self.aggregation == "constant") != (self.constant_tokens is not None):
            raise ValueError("constant_tokens must be set if, and only if, aggregation is 'constant'")
        if self.importance_correction != "none" and self.old_logprobs != "trainer":
            raise ValueError("importance_correction needs old_logprobs = 'trainer': with the sampler's it is always 1")
        if self.temperature_of == "loss" and self.old_logprobs != "trainer":
            raise ValueError(
                "temperature_of 'loss' needs old_logprobs = 'trainer': the sampler's log-probabilities have the "
                "sampler's temperature, so that a ratio with them would not be 1 where nothing has moved"
            )
        if self.importance_floor > self.importance_cap:
            raise ValueError(f"importance_floor {self.importance_floor} is above importance_cap {self.importance_cap}")
        if self.dual_clip is not None and self.kind not in ("ppo_clip", "gspo"):
            raise ValueError(f"dual_clip bounds the losses ppo_clip and gspo, not {self.kind}")
        if self.kl_place != "loss" and self.kl_estimator == "unbiased_k3":
            raise ValueError("unbiased_k3 corrects a divergence in the loss; in the reward it is k1, k2 or k3")
        if self.positive_nll and self.kind == "cross_entropy":
            raise ValueError(
                "positive_nll is a second term beside a loss of advantages, and cross_entropy is that term"
            )
        if self.kl_place != "loss" and self.kind == "cross_entropy":
            raise ValueError("cross_entropy reads no advantages, so kl_place must be 'loss'")
        return self

    @property
    def reads_old_logprobs(self) -> bool:
        """Whether the loss, its correction or the divergence reads log-probabilities under the starting weights."""
        corrected = self.importance_correction != "none" or self.kl_estimator == "unbiased_k3"
        return self.kind != "cross_entropy" or corrected

    def check_model(self, shape: "DecoderShape") -> None:
        """Refuses a model that lacks what the loss needs.

        Raises:
            BadInputError: A router loss is set, but the model has no experts.
        """
        if self.router_aux_loss_coef and shape.experts is None:
            problem = f"{self.router_aux_loss_coef:g}, for a model without experts ({shape.family})"
            raise BadInputError("finetune.loss.router_aux_loss_coef", problem, "0: it has no router")


Dtype = Literal["bf16", "fp32"]
"""Name of a precision in configs."""
EpochOrder = Literal["shuffled", "same"]
"""Mini-batches of the passes after the first: drawn again or as packed (see `stages.training.epochs`)."""


class OptimizerConfig(Config):
    """AdamW with decoupled weight decay on every trained parameter.

    With `master_dtype` `bf16` every single step is rounded to bf16, which loses most steps at the usual learning rates
    (see `stages.training.rounding`). With its gradient, a trained weight takes 8 bytes of memory instead of 18.
    """

    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="decay of the first and second moments, each in [0, 1)"
    )
    eps: float = Field(default=1e-8, gt=0.0, le=1.0, description="added to the root of the second moment")
    weight_decay: float = Field(
        default=0.0, ge=0.0, le=1e6, description="share of a weight that a step subtracts, times the rate"
    )
    max_grad_norm: float | None = Field(
        default=1.0, gt=0.0, le=1e12, description="gradients are clipped to this norm; null = off"
    )
    master_dtype: Dtype = Field(
        default="fp32", description="precision of the trained weights, their gradients and AdamW's moments"
    )
    max_skipped_steps: int = Field(
        default=3,
        ge=0,
        le=1_000_000,
        description="steps of a job that may be skipped because the gradient is not finite; the next one fails",
    )

    @model_validator(mode="after")
    def _betas_below_one(self) -> Self:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {self.betas}")
        return self


class UpdateConfig(Config):
    """Settings that a recipe and a training job share: loss, passes, optimizer, and which parameters learn."""

    epochs: int = Field(default=1, ge=1, le=1_000_000, description="Passes over the batch.")
    epoch_order: EpochOrder = Field(
        default="shuffled",
        description="Mini-batches of the passes after the first: drawn again from the batch's rows, or as packed.",
    )
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)


class ValueJob(Config):
    """A critic that a job trains instead of a policy. The batch has rewards instead of advantages.

    The loss is the mean over tokens of half the squared distance from the target (see `stages.grpo.loss.value_loss`).
    """

    head: ValueHead = Field(description="form of the head")
    low: float = Field(default=0.0, description="least value of a `bounded` head")
    high: float = Field(default=1.0, description="highest value of a `bounded` head")
    clip: float | None = Field(default=None, gt=0.0, description="largest distance from the old value; null = off")
    lambda_: float = Field(default=1.0, ge=0.0, le=1.0, description="lambda of the targets")


class JobSettings(UpdateConfig):
    """How a job trains on its batch: the part of the job that identities hold and that determines its result."""

    learning_rates: tuple[float, ...] = Field(description="One per optimizer step: epochs x mini-batches.")
    epoch_seed: int = Field(default=0, ge=0, description="Seed of the `shuffled` order.")
    reference_decay: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="The next reference is reference_decay x reference + (1 - reference_decay) x new weights; null: "
        "none is written.",
    )
    value: ValueJob | None = Field(default=None, description="Train a critic; null = a policy.")

    @classmethod
    def of(cls, config: UpdateConfig, learning_rates: Sequence[float], epoch_seed: int, **settings: Any) -> Self:
        """Returns the settings of a job under a config; order and seed are left out where a single pass has none."""
        shared = {name: getattr(config, name) for name in UpdateConfig.model_fields}
        order = {"epoch_seed": epoch_seed} if config.epochs > 1 else {"epoch_order": "same"}
        return cls(**{**shared, **order}, learning_rates=tuple(learning_rates), **settings)


class JobPaths(Document):
    """The files and folders of a training job on the machines of its workers; null = not given, or not written."""

    checkpoint_dir: Path = Field(description="Hugging Face folder: config, tokenizer files and starting weights")
    batch_file: Path = Field(description="packed batch (safetensors)")
    state_dir: Path | None = Field(default=None, description="optimizer state to start from, instead of the checkpoint")
    resume_dir: Path | None = Field(default=None, description="step checkpoint of this job to continue from")
    reference_dir: Path | None = Field(default=None, description="Hugging Face folder of the reference of the KL term")
    step_checkpoints_dir: Path | None = Field(
        default=None, description="folder for step checkpoints, one at a time: the owner moves each one out"
    )
    out_checkpoint_dir: Path = Field(description="new Hugging Face folder (made here)")
    out_state_dir: Path | None = Field(default=None, description="new optimizer state folder")
    out_reference_dir: Path | None = Field(default=None, description="the next reference")
    out_values_file: Path | None = Field(
        default=None, description="values under the starting weights (safetensors), by a critic"
    )


class _Job(Document):
    """A job of the workers."""

    hardware: TrainHardware = Field(default_factory=TrainHardware)
    events_file: Path = Field(description="JSON lines of progress; workers append to the file")


class TrainJob(_Job):
    """A training job: how it trains, where it reads and writes, and the machine.

    It starts from a checkpoint, from an optimizer state in the store or in the workers' memory, or from a step
    checkpoint.
    """

    settings: JobSettings
    paths: JobPaths
    warm: bool = Field(default=False, description="start from the state in the workers' memory; load nothing")

    @model_validator(mode="after")
    def _inputs_agree(self) -> Self:
        settings, paths = self.settings, self.paths
        if paths.reference_dir is None and (settings.loss.kl_coef or paths.out_reference_dir is not None):
            raise ValueError("reference_dir must be set: kl_coef is not 0, or the next reference is to be written")
        if (settings.reference_decay is None) != (paths.out_reference_dir is None):
            raise ValueError("reference_decay and out_reference_dir belong together: set both or none")
        if paths.out_values_file is not None and settings.value is None:
            raise ValueError("out_values_file needs a critic")
        if paths.resume_dir is not None and (self.warm or paths.state_dir is not None):
            raise ValueError("resume_dir excludes warm and state_dir")
        return self


class ScoreJob(_Job):
    """A job that computes the log-probabilities of a batch's completions under a model and trains nothing.

    The weights and the optimizer state in the workers' memory stay as they are.
    """

    checkpoint_dir: Path = Field(description="Hugging Face folder of the model")
    batch_file: Path = Field(description="packed batch (safetensors)")
    temperature: float = Field(gt=0.0, description="divisor of the logits")
    out_file: Path = Field(description="safetensors with the tensor `logprobs`, as wide as the batch (made here)")
