"""Layout of the trainer's processes on machines. This module imports no torch."""

import math
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from stages.hardware.compute_type import cuda_capabilities, training_type

if TYPE_CHECKING:
    from stages.training.trainable import TrainableConfig


def is_public(address: str) -> bool:
    """Returns whether an address is routable on the internet; False for a name."""
    try:
        return ip_address(address).is_global
    except ValueError:
        return False


@dataclass(frozen=True)
class RowShare:
    """The share of a step's rows that a process computes. The processes of a tensor group compute the same share.

    Attributes:
        number: Number of the share, from 0.
        count: Number of shares: one for each process, or for each tensor group.
        is_first: Whether the process is the first of its tensor group. Sums over all processes leave the others out.
    """

    number: int
    count: int
    is_first: bool


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
        pattern=r"^[^\s:]+$",
        description="name or address of the first machine on the network that carries the trainer's data",
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
    compile: bool | Literal["auto"] = Field(
        default="auto",
        description="on GPUs, compile layers and head with torch.compile, which fuses norms, rotation, products and "
        "log-probabilities; auto = on where tensor_parallel is 1; CPUs always compute eagerly",
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
        """The number of shares of the rows of a step."""
        return self.row_share(0, self.world).count

    def row_share(self, rank: int, world: int) -> RowShare:
        """Returns the share of a running process.

        Args:
            rank: Number of the process, from 0.
            world: Number of processes that run; in a worker group it is `self.world`.
        """
        size = self.tensor_parallel
        return RowShare(rank // size, world // size, is_first=rank % size == 0)

    @property
    def shards_weights(self) -> bool:
        """Whether FSDP2 shards the weights: over several processes, or to keep them in the host's memory."""
        return self.world > 1 or self.cpu_offload

    @property
    def uses_cuda(self) -> bool:
        """Whether the workers compute on GPUs, as far as the driver reports."""
        return self.device == "cuda" or (self.device == "auto" and bool(cuda_capabilities()))

    def compiles(self, device: str) -> bool:
        """Returns whether layers and head are compiled on a type of device, `cpu` or `cuda`."""
        asked = self.tensor_parallel == 1 if self.compile == "auto" else self.compile
        return asked and device == "cuda"

    def on_this_machine(self, hidden: int | None = None) -> Self:
        """Returns the same hardware with `compute_dtype` decided for this machine and a model of width `hidden`."""
        if self.compute_dtype != "auto":
            return self
        decided = training_type("cuda" if self.uses_cuda else "cpu", hidden).type
        return self.model_copy(update={"compute_dtype": decided})

    def same_layout(self, other: Self) -> bool:
        """Returns whether the same worker processes can run jobs of both. Only the compute type may differ."""
        return self == other.model_copy(update={"compute_dtype": self.compute_dtype})

    def check_trainable(self, trainable: "TrainableConfig") -> None:
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

    def check_layers(self, heads: int, kv_heads: int, width: int, feed_forward: int, *, divisible: bool) -> None:
        """Refuses a model whose layers `tensor_parallel` does not divide.

        Args:
            divisible: Whether each process can compute some of the heads; False for one fused matrix of all of them,
                and for a norm over all of them.

        Raises:
            BadInputError: It does not divide one of these sizes of a layer, or the layers cannot be divided.
        """
        if self.tensor_parallel > 1 and not divisible:
            raise BadInputError(
                "trainer.tensor_parallel",
                f"{self.tensor_parallel}, for a model whose heads share a matrix or a norm",
                "1",
                "set trainer.cpu_offload = true if the weights do not fit",
            )
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
        if self.tensor_parallel > 1 and self.compile is True:
            raise ValueError("compile = true needs tensor_parallel = 1: set it to auto or false")
        return self

    @model_validator(mode="after")
    def _machines_can_meet(self) -> Self:
        if self.nodes > 1 and (self.rendezvous is None or self.shared_dir is None):
            raise ValueError("several nodes need rendezvous (name or address of the first) and shared_dir")
        host = self.rendezvous
        if host is not None and is_public(host) and not self.rendezvous_public:
            raise ValueError(
                f"rendezvous {host} is a public address, and anybody who reaches the trainer's ports can disturb the "
                "training: name an address of a private network, or firewall the ports as docs/cluster.md says and set "
                "rendezvous_public = true"
            )
        return self
