"""What the trainer is asked to do: plain data, readable without torch."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from artifacts.config import Config
from artifacts.identity import Added
from stages.machine import cuda_capabilities, training_type
from stages.training.trainable import TrainableConfig


class LossConfig(Config):
    """The loss of one token, how tokens are averaged, and what is added to their loss.

    With rho = exp(new - old), advantage A and weight w, the loss of a token is
    `ppo_clip`: -w min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A); `gspo`: the same with the geometric mean of rho
    over the completion; `cispo`: -w clip(rho) A new, the clipped ratio a constant; `reinforce`: -w rho A, no clip;
    `tanh`: -w tanh(new - old) A; `cross_entropy`: -w new, which reads neither advantages nor old log-probabilities.

    An optimizer step divides by counts over all its rows on all processes: `token_mean` by the tokens that take part,
    `sequence_mean` by the tokens of each completion and then by the completions, `group_mean` by the tokens of each
    group and then by the groups, `constant` by completions times `constant_tokens`; `inverse_length` weighs a token by
    the inverse length of its completion, rescaled to a mean of 1 over the batch, and divides by the tokens. GSPO's own
    aggregation is `sequence_mean`. The entropy bonus is always a mean over tokens; the KL term is aggregated like the
    loss, but never corrected. In the reward the divergence is a constant, and no term of the loss:
    `stages/grpo/kl_reward.py` says what it becomes.
    """

    kind: Literal["ppo_clip", "reinforce", "cispo", "gspo", "tanh", "cross_entropy"] = Field(
        default="ppo_clip", description="loss of one token"
    )
    clip_low: float = Field(default=0.2, ge=0.0, le=1.0, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(default=0.2, ge=0.0, le=1e6, description="the ratio is clipped above 1 + clip_high")
    dual_clip: float | None = Field(
        default=None,
        gt=1.0,
        le=1e6,
        description="where A < 0 the ratio is clipped above this too (ppo_clip, gspo); null = off",
    )
    aggregation: Literal["token_mean", "sequence_mean", "group_mean", "inverse_length", "constant"] = Field(
        default="token_mean", description="what the sum of token losses is divided by"
    )
    constant_tokens: int | None = Field(
        default=None, ge=1, le=10_000_000, description="length that `constant` divides by"
    )
    old_logprobs: Literal["sampler", "trainer"] = Field(
        default="sampler", description="denominator of the ratio: the sampler's, or recomputed before the first update"
    )
    temperature: float = Field(
        default=1.0,
        gt=0.0,
        le=100.0,
        description="logits are divided by it, those of the policy, the old one and the reference",
    )
    temperature_of: Annotated[Literal["sampler", "loss"], Added(before="sampler")] = Field(
        default="sampler",
        description="whose temperature that is: the sampler's, so that any other is refused, or the loss's own, which "
        "needs old_logprobs = 'trainer'",
    )
    entropy_coef: float = Field(
        default=0.0, ge=0.0, le=1e6, description="weight of the mean token entropy that is rewarded"
    )
    kl_coef: float = Field(default=0.0, ge=0.0, le=1e6, description="weight of the divergence from the reference")
    kl_estimator: Literal["k1", "k2", "k3", "unbiased_k3"] = Field(
        default="k3",
        description="with d = new - reference: d, d^2 / 2, exp(-d) + d - 1, or the last times exp(new - old)",
    )
    kl_clamp: Annotated[float | None, Added(before=None)] = Field(
        default=None,
        gt=0.0,
        le=1e6,
        description="the estimate at each token is held within +-kl_clamp, outside of which it has no gradient; null = "
        "off",
    )
    kl_place: Literal["loss", "token_reward", "sequence_reward"] = Field(
        default="loss",
        description="the divergence is a term of the loss, or part of the reward: kl_coef times what it is under the "
        "old log-probabilities comes off the advantages, of this token and those behind it, or of the whole "
        "completion less the mean of its group's",
    )
    importance_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        Field(
            default="none",
            description="the loss is multiplied by the importance exp(old - sampler) of the token, or by their product "
            "over the completion: held within importance_floor and importance_cap, or 0 where it is outside",
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
            raise ValueError("constant_tokens is given if, and only if, aggregation is 'constant'")
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
        if self.kl_place != "loss" and self.kind == "cross_entropy":
            raise ValueError("cross_entropy reads no advantages, so kl_place must be 'loss'")
        return self


Dtype = Literal["bf16", "fp32"]
"""A precision, as configs name it."""
EpochOrder = Literal["shuffled", "same"]
"""Whether each pass over a batch after the first draws its mini-batches anew (see `stages.training.epochs`)."""


class OptimizerConfig(Config):
    """AdamW with decoupled weight decay on every trained parameter; `master_dtype` is the precision of what it keeps.

    With `bf16` every single step is rounded to bf16, which drops most steps of the usual learning rates
    (see `stages.training.rounding`); a trained weight takes 8 bytes instead of 14.
    """

    betas: tuple[float, float] = Field(
        default=(0.9, 0.999), description="decay of the first and second moments, each in [0, 1)"
    )
    eps: float = Field(default=1e-8, gt=0.0, le=1.0, description="added to the root of the second moment")
    weight_decay: float = Field(default=0.0, ge=0.0, le=1e6, description="share of a weight taken off, times the rate")
    max_grad_norm: float | None = Field(
        default=1.0, gt=0.0, le=1e12, description="gradients are cut to this norm; null = off"
    )
    master_dtype: Annotated[Dtype, Added(before="fp32")] = Field(
        default="fp32", description="precision of the trained weights, their gradients and AdamW's moments"
    )
    # What is published without this setting has no skipped step, as with any limit.
    max_skipped_steps: Annotated[int, Added(before=3)] = Field(
        default=3,
        ge=0,
        le=1_000_000,
        description="steps of a job that are skipped for a gradient that is not finite; one more fails",
    )

    @model_validator(mode="after")
    def _betas_below_one(self) -> Self:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {self.betas}")
        return self


def is_public(address: str) -> bool:
    """Whether the internet may route to an address; a name is none."""
    try:
        return ip_address(address).is_global
    except ValueError:
        return False


class TrainHardware(Config):
    """How the work is laid out. Never part of an identity: it changes results by float rounding only."""

    processes: int = Field(default=1, ge=1, le=1024, description="worker processes on each machine (one a GPU)")
    nodes: int = Field(
        default=1, ge=1, le=1024, description="machines; on the others runs `python -m stages.training.node`"
    )
    rendezvous: str | None = Field(
        default=None,
        pattern=r"^[^\s:]+(:\d+)?$",
        description="name or address of the first machine on the network that carries the trainer's data; "
        "a port behind it, as earlier versions needed, is not used",
    )
    rendezvous_public: bool = Field(
        default=False, description="the trainer's ports may be on a public address, which is refused otherwise"
    )
    shared_dir: Path | None = Field(
        default=None, description="folder that all machines see, for job files; temporary files and store must be too"
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads a process; null = cores / processes"
    )
    micro_batch_tokens: int = Field(
        default=4096, ge=1, le=1_000_000_000, description="tokens of a forward pass; a longer row goes alone"
    )
    compute_dtype: Literal["auto", "bf16", "fp32"] = Field(
        default="auto", description="precision of forward and backward; auto = the quicker for this model and machine"
    )
    activation_checkpointing: bool = Field(default=False, description="recompute layers in backward")
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
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto = cuda where there is one")
    cpu_offload: bool = Field(
        default=False,
        description="keep weights, gradients and optimizer state in the host's memory (CUDA, or several processes)",
    )
    checkpoint_every_s: float | None = Field(
        default=900.0,
        ge=0.0,
        le=1e7,
        description="seconds between step checkpoints, from which a killed job goes on; 0 = each step; null = none",
    )
    no_progress_limit_s: float = Field(
        default=300.0,
        gt=0.0,
        le=1e7,
        description="silence that counts as hung although the processes work; stopped or idle ones are noticed in 10 s",
    )

    @property
    def world(self) -> int:
        """Worker processes on all machines."""
        return self.nodes * self.processes

    @property
    def rendezvous_host(self) -> str | None:
        """The first machine's name or address, without a port."""
        return self.rendezvous and self.rendezvous.partition(":")[0]

    @property
    def uses_cuda(self) -> bool:
        """Whether the workers compute on GPUs, as far as the driver tells."""
        return self.device == "cuda" or (self.device == "auto" and bool(cuda_capabilities()))

    def on_this_machine(self, hidden: int | None = None) -> Self:
        """Returns the same hardware with the compute type decided, for models of this hidden size if one is given."""
        if self.compute_dtype != "auto":
            return self
        decided = training_type("cuda" if self.uses_cuda else "cpu", hidden).type
        return self.model_copy(update={"compute_dtype": decided})

    def same_layout(self, other: Self) -> bool:
        """Whether the same worker processes can do jobs of both: only the compute type may differ."""
        return self == other.model_copy(update={"compute_dtype": self.compute_dtype})

    @model_validator(mode="after")
    def _machines_can_meet(self) -> Self:
        if self.nodes > 1 and (self.rendezvous is None or self.shared_dir is None):
            raise ValueError("several nodes need rendezvous (name or address of the first) and shared_dir")
        host = self.rendezvous_host
        if host is not None and is_public(host) and not self.rendezvous_public:
            raise ValueError(
                f"rendezvous {host} is a public address, and whoever reaches the trainer's ports can disturb the "
                "training: name an address of a private network, or firewall the ports as the RUNBOOK says and set "
                "rendezvous_public = true"
            )
        return self


class TrainJob(BaseModel):
    """One finetune: a checkpoint (or a training state, or what the gang still holds), a batch, a schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint_dir: Path = Field(description="Hugging Face folder: config, tokenizer files and starting weights")
    state_dir: Path | None = Field(default=None, description="training state to start from; null = checkpoint only")
    warm: bool = Field(default=False, description="start from what the gang holds; load nothing")
    resume_dir: Path | None = Field(default=None, description="step checkpoint of this job to go on from, if any")
    step_checkpoints_dir: Path | None = Field(
        default=None, description="folder for step checkpoints, one at a time: the owner takes each away; null = none"
    )
    batch_file: Path = Field(description="packed batch (safetensors)")
    learning_rates: list[float] = Field(min_length=1, description="one per optimizer step: epochs x mini-batches")
    epochs: int = Field(default=1, ge=1, description="passes over the batch, the first over its mini-batches as packed")
    epoch_order: EpochOrder = Field(default="same", description="mini-batches of the passes after the first")
    epoch_seed: int = Field(default=0, ge=0, description="seed of the `shuffled` epoch order")
    reference_dir: Path | None = Field(
        default=None, description="Hugging Face folder of the model that the KL term measures from; null = no such term"
    )
    out_reference_dir: Path | None = Field(
        default=None, description="next reference, reference_decay x reference + (1 - reference_decay) x new weights"
    )
    reference_decay: float = Field(default=0.99, ge=0.0, le=1.0, description="weight of the old in the next reference")
    loss: LossConfig = Field(default_factory=LossConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    trainable: TrainableConfig = Field(default_factory=TrainableConfig)
    hardware: TrainHardware = Field(default_factory=TrainHardware)
    out_checkpoint_dir: Path = Field(description="new Hugging Face folder (made here)")
    out_state_dir: Path | None = Field(default=None, description="new training state folder; null = not written")
    events_file: Path = Field(description="JSON lines of progress, appended to")

    @model_validator(mode="after")
    def _reference_is_there(self) -> Self:
        if self.reference_dir is None and (self.loss.kl_coef or self.out_reference_dir is not None):
            raise ValueError("reference_dir is needed: kl_coef is not 0, or the next reference is asked for")
        if self.resume_dir is not None and (self.warm or self.state_dir is not None):
            raise ValueError("resume_dir is given: then neither warm nor state_dir is")
        return self
