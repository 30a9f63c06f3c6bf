"""Settings of a training job and of the trainer's layout. This module imports no torch."""

import math
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.errors import BadInputError
from artifacts.identity import Added
from stages.hardware.compute_type import cuda_capabilities, training_type
from stages.models.value_head import ValueHead
from stages.training.trainable import TrainableConfig


class LossConfig(Config):
    """The loss of one token, its aggregation over tokens, and the terms that are added to it.

    With rho = exp(new - old), advantage A and weight w, the loss of a token is

    * `ppo_clip`: -w min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A)
    * `gspo`: the same with the geometric mean of rho over the completion
    * `cispo`: -w clip(rho) A new, with the clipped ratio as a constant
    * `reinforce`: -w rho A, without a clip
    * `masked`: -w rho A where clip(rho) is rho, else 0
    * `tanh`: -w tanh(new - old) A
    * `cross_entropy`: -w new, which reads neither advantages nor old log-probabilities

    An optimizer step sums the token losses and divides by counts over all its rows on all processes:

    * `token_mean`: by the tokens in the loss
    * `sequence_mean`: by the tokens of each completion, then by the completions (GSPO's own aggregation)
    * `group_mean`: by the tokens of each group, then by the groups
    * `constant`: by the completions times `constant_tokens`
    * `inverse_length`: by the tokens, after each token was weighted by the inverse length of its completion, rescaled
      to a mean of 1 over the batch

    The entropy bonus is always a mean over tokens, and `positive_nll` weighs a mean over the tokens of right
    completions. The KL term is aggregated like the loss, without importance correction. A divergence in the reward is a
    constant and no term of the loss; see `stages/grpo/kl_reward.py`.
    """

    kind: Literal["ppo_clip", "reinforce", "masked", "cispo", "gspo", "tanh", "cross_entropy"] = Field(
        default="ppo_clip", description="loss of one token"
    )
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(default=0.2, ge=0.0, le=1e6, description="the ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(
        default=None,
        gt=1.0,
        le=1e6,
        description="if A < 0, the ratio is also clipped above this (ppo_clip, gspo); null = off",
    )
    aggregation: Literal["token_mean", "sequence_mean", "group_mean", "inverse_length", "constant"] = Field(
        default="token_mean", description="divisor of the sum of token losses"
    )
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
    temperature_of: Annotated[Literal["sampler", "loss"], Added(before="sampler")] = Field(
        default="sampler",
        description="`sampler`: the temperature must be the sampler's; `loss`: the loss has its own temperature, which "
        "needs old_logprobs = 'trainer'",
    )
    positive_nll: Annotated[float, Added(before=0.0)] = Field(
        default=0.0,
        ge=0.0,
        le=1e6,
        description="weight of the mean negative log-probability of the tokens of right completions (VAPO); needs "
        "pack.mark_right",
    )
    head_dtype: Annotated[Literal["compute", "fp32"], Added(before="compute")] = Field(
        default="compute",
        description="precision of the logits and the products with the output head; `compute`: that of the other "
        "layers. bf16 logits differ more from the sampler's",
    )
    entropy_coef: float = Field(
        default=0.0, ge=0.0, le=1e6, description="weight of the bonus for the mean token entropy"
    )
    kl_coef: float = Field(default=0.0, ge=0.0, le=1e6, description="weight of the divergence from the reference")
    kl_estimator: Literal["k1", "k2", "k3", "unbiased_k3"] = Field(
        default="k3",
        description="with d = new - reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, "
        "unbiased_k3 = k3 exp(new - old)",
    )
    kl_clamp: Annotated[float | None, Added(before=None)] = Field(
        default=None,
        gt=0.0,
        le=1e6,
        description="the estimate at each token is clamped to +-kl_clamp and has no gradient outside; null = off",
    )
    kl_place: Literal["loss", "token_reward", "sequence_reward"] = Field(
        default="loss",
        description="`loss`: the divergence is a term of the loss. Otherwise it is part of the reward: kl_coef times "
        "the divergence under the old log-probabilities is subtracted from the advantages. `token_reward`: the "
        "divergence of this token and the tokens after it; `sequence_reward`: that of the completion minus the mean of "
        "its group",
    )
    importance_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        Field(
            default="none",
            description="factor of the loss: the importance exp(old - sampler) of the token, or its product over the "
            "completion. Outside importance_floor and importance_cap it is clamped (truncate) or 0 (mask)",
        )
    )
    importance_floor: float = Field(default=0.0, ge=0.0, le=1e6, description="lower bound of the importance correction")
    importance_cap: float = Field(default=2.0, gt=0.0, le=1e6, description="upper bound of the importance correction")

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
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
    master_dtype: Annotated[Dtype, Added(before="fp32")] = Field(
        default="fp32", description="precision of the trained weights, their gradients and AdamW's moments"
    )
    # An artifact published before this setting existed has no skipped step, so any limit gives the same result.
    max_skipped_steps: Annotated[int, Added(before=3)] = Field(
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


def is_public(address: str) -> bool:
    """Returns whether an address is routable on the internet; False for a name."""
    try:
        return ip_address(address).is_global
    except ValueError:
        return False


class TrainHardware(Config):
    """Layout of the trainer on machines. Not part of an identity: it changes results by float rounding only."""

    processes: int = Field(default=1, ge=1, le=1024, description="worker processes on each machine (one a GPU)")
    nodes: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="machines; each further one runs `python -m stages.training.worker_group.node`",
    )
    rendezvous: str | None = Field(
        default=None,
        pattern=r"^[^\s:]+(:\d+)?$",
        description="name or address of the first machine on the network that carries the trainer's data; "
        "a port after it, as earlier versions needed, is ignored",
    )
    rendezvous_public: bool = Field(
        default=False, description="allow the trainer's ports on a public address, which is refused otherwise"
    )
    shared_dir: Path | None = Field(
        default=None,
        description="folder that all machines see, for job files; all must also see the temporary files and the store",
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads per process; null = cores / processes"
    )
    micro_batch_tokens: int = Field(
        default=4096, ge=1, le=1_000_000_000, description="tokens per forward pass; a longer row is computed alone"
    )
    compute_dtype: Literal["auto", "bf16", "fp32"] = Field(
        default="auto",
        description="precision of forward and backward; auto = the faster one for this model and machine",
    )
    activation_checkpointing: bool = Field(default=False, description="recompute layers in backward")
    compile: bool = Field(
        default=False,
        description="on GPUs, compile each layer with torch.compile, which fuses norms, rotation and products (not yet "
        "tried on a GPU); CPUs compute eagerly",
    )
    logprob_chunk_tokens: int = Field(
        default=2048,
        ge=1,
        le=1_000_000_000,
        description="tokens whose probabilities over the vocabulary may be in memory at a time",
    )
    reshard_after_forward: bool = Field(
        default=True,
        description="with several processes: free gathered layer weights between forward and backward",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="number of processes that divide each layer among them, for layers that do not fit one GPU; it "
        "must divide nodes x processes and the model's heads, key-value heads and widths (not yet tried on a GPU)",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto = cuda if there is a CUDA device")
    cpu_offload: bool = Field(
        default=False,
        description="keep weights, gradients and optimizer state in the host's memory (CUDA, or several processes)",
    )
    checkpoint_every_s: float | None = Field(
        default=900.0,
        ge=0.0,
        le=1e7,
        description="seconds between step checkpoints, from which a killed job continues; 0 = each step; null = none",
    )
    no_progress_limit_s: float = Field(
        default=300.0,
        gt=0.0,
        le=1e7,
        description="seconds without progress after which working processes count as hung; stopped or idle ones are "
        "noticed in 10 s",
    )

    @property
    def world(self) -> int:
        """The number of worker processes on all machines."""
        return self.nodes * self.processes

    @property
    def row_shares(self) -> int:
        """The number of shares of the rows of a step: one for each process, or for each tensor group."""
        return self.world // self.tensor_parallel

    @property
    def rendezvous_host(self) -> str | None:
        """The name or address of the first machine, without a port."""
        return self.rendezvous and self.rendezvous.partition(":")[0]

    @property
    def uses_cuda(self) -> bool:
        """Whether the workers compute on GPUs, as far as the driver reports."""
        return self.device == "cuda" or (self.device == "auto" and bool(cuda_capabilities()))

    def compiles(self, device: str) -> bool:
        """Returns whether layers are compiled on a type of device, `cpu` or `cuda`."""
        return self.compile and device == "cuda"

    def on_this_machine(self, hidden: int | None = None) -> Self:
        """Returns the same hardware with `compute_dtype` decided for this machine and a model of width `hidden`."""
        if self.compute_dtype != "auto":
            return self
        decided = training_type("cuda" if self.uses_cuda else "cpu", hidden).type
        return self.model_copy(update={"compute_dtype": decided})

    def same_layout(self, other: Self) -> bool:
        """Returns whether the same worker processes can run jobs of both. Only the compute type may differ."""
        return self == other.model_copy(update={"compute_dtype": self.compute_dtype})

    def check_trainable(self, trainable: TrainableConfig) -> None:
        """Refuses LoRA with tensor parallelism.

        Raises:
            BadInputError: `tensor_parallel` is above 1, and LoRA adapts the layers.
        """
        if self.tensor_parallel > 1 and trainable.parameters == "lora":
            raise BadInputError(
                "trainer.tensor_parallel",
                f"{self.tensor_parallel}, with finetune.trainable.parameters = 'lora'",
                "1",
                "adapters are not divided; set trainer.cpu_offload = true if the frozen weights do not fit",
            )

    def check_layers(self, heads: int, kv_heads: int, width: int, feed_forward: int) -> None:
        """Refuses a model whose layers `tensor_parallel` does not divide.

        Raises:
            BadInputError: It does not divide one of these sizes of a layer.
        """
        common = math.gcd(heads, kv_heads, width, feed_forward)
        if common % self.tensor_parallel:
            allowed = ", ".join(str(number) for number in range(1, common + 1) if common % number == 0)
            raise BadInputError(
                "trainer.tensor_parallel",
                f"{self.tensor_parallel}, for a model with {heads} heads, {kv_heads} key-value heads, width {width} "
                f"and feed-forward width {feed_forward}",
                f"a number that divides all of them: {allowed}",
            )

    @model_validator(mode="after")
    def _tensor_groups_are_whole(self) -> Self:
        if self.world % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} does not divide nodes x processes, "
                f"{self.nodes} x {self.processes}"
            )
        if self.tensor_parallel > 1 and self.compile:
            raise ValueError("compile = true needs tensor_parallel = 1")
        return self

    @model_validator(mode="after")
    def _machines_can_meet(self) -> Self:
        if self.nodes > 1 and (self.rendezvous is None or self.shared_dir is None):
            raise ValueError("several nodes need rendezvous (name or address of the first) and shared_dir")
        host = self.rendezvous_host
        if host is not None and is_public(host) and not self.rendezvous_public:
            raise ValueError(
                f"rendezvous {host} is a public address, and anybody who reaches the trainer's ports can disturb the "
                "training: name an address of a private network, or firewall the ports as the RUNBOOK says and set "
                "rendezvous_public = true"
            )
        return self


class ValueJob(Config):
    """A value model that a job trains instead of a policy. The batch has rewards in the place of advantages.

    The loss is the mean over tokens of half the squared distance from the target (see `stages.grpo.loss.value_loss`).
    """

    head: ValueHead = Field(description="form of the head")
    low: float = Field(default=0.0, description="least value of a `bounded` head")
    high: float = Field(default=1.0, description="highest value of a `bounded` head")
    clip: float | None = Field(default=None, gt=0.0, description="largest distance from the old value; null = off")
    lambda_: float = Field(default=1.0, ge=0.0, le=1.0, description="lambda of the targets")


class TrainJob(Document):
    """A training job: the weights to start from, a batch, and how to train on it.

    It starts from a checkpoint, from a training state, from the state in the workers' memory or from a step checkpoint.
    """

    checkpoint_dir: Path = Field(description="Hugging Face folder: config, tokenizer files and starting weights")
    state_dir: Path | None = Field(default=None, description="training state to start from; null = checkpoint only")
    warm: bool = Field(default=False, description="start from the state in the workers' memory; load nothing")
    resume_dir: Path | None = Field(
        default=None, description="step checkpoint of this job to continue from; null = none"
    )
    step_checkpoints_dir: Path | None = Field(
        default=None,
        description="folder for step checkpoints, one at a time: the owner moves each one out; null = none",
    )
    batch_file: Path = Field(description="packed batch (safetensors)")
    learning_rates: list[float] = Field(min_length=1, description="one per optimizer step: epochs x mini-batches")
    epochs: int = Field(default=1, ge=1, description="passes over the batch; the first uses its mini-batches as packed")
    epoch_order: EpochOrder = Field(default="same", description="mini-batches of the passes after the first")
    epoch_seed: int = Field(default=0, ge=0, description="seed of the `shuffled` epoch order")
    reference_dir: Path | None = Field(
        default=None, description="Hugging Face folder of the reference model of the KL term; null = no such term"
    )
    out_reference_dir: Path | None = Field(
        default=None, description="next reference, reference_decay x reference + (1 - reference_decay) x new weights"
    )
    reference_decay: float = Field(default=0.99, ge=0.0, le=1.0, description="weight of the old reference in the next")
    value: ValueJob | None = Field(default=None, description="train a value model; null = a policy")
    out_values_file: Path | None = Field(
        default=None, description="file for the values under the starting weights (safetensors); null = not written"
    )
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    hardware: TrainHardware = Field(default_factory=TrainHardware)
    out_checkpoint_dir: Path = Field(description="new Hugging Face folder (made here)")
    out_state_dir: Path | None = Field(default=None, description="new training state folder; null = not written")
    events_file: Path = Field(description="JSON lines of progress, appended to")

    @model_validator(mode="after")
    def _inputs_agree(self) -> Self:
        if self.reference_dir is None and (self.loss.kl_coef or self.out_reference_dir is not None):
            raise ValueError("reference_dir must be set: kl_coef is not 0, or the next reference is to be written")
        if self.out_values_file is not None and self.value is None:
            raise ValueError("out_values_file needs a value model")
        if self.resume_dir is not None and (self.warm or self.state_dir is not None):
            raise ValueError("resume_dir excludes warm and state_dir")
        return self


class ScoreJob(Document):
    """A job that computes the log-probabilities of a batch's completions under a model and trains nothing.

    The weights and the optimizer state in the workers' memory stay as they are.
    """

    checkpoint_dir: Path = Field(description="Hugging Face folder of the model")
    batch_file: Path = Field(description="packed batch (safetensors)")
    temperature: float = Field(gt=0.0, description="divisor of the logits")
    hardware: TrainHardware = Field(default_factory=TrainHardware)
    out_file: Path = Field(description="safetensors with the tensor `logprobs`, as wide as the batch (made here)")
    events_file: Path = Field(description="JSON lines of progress, appended to")
