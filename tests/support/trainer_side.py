"""The trainer's side of the engine's tests: its checkpoints, and its log-probabilities of sampled tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from stages.grpo.groups import Branch, Group
from stages.models.adapters import with_base
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.shape import read_shape
from stages.sampling.client import GroupSamples
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import Policy
from stages.training.trainable import EVERYTHING, TrainableConfig
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.policies import ARCHITECTURES
from tests.support.trainer_work import save_batch
from tests.support.trees import save_model

CPU = torch.device("cpu")
LORA = TrainableConfig(
    parameters="lora", rank=4, alpha=8.0,
    projections=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)  # fmt: skip
HEAD_DIM = 32
"""Width of heads that vLLM has on a CPU."""
FAMILIES = (
    "llama3", "qwen3", "qwen2-yarn", "mistral-sliding", "phi3", "phi4-mini", "smollm3", "olmo2", "olmo3-yarn",
    "gemma3", "granite", "qwen3-moe",
)  # fmt: skip
"""Models of `tests.support.policies` that are tried with the engine."""


def write_source(folder: Path, model: str, texts: Sequence[str]) -> Path:
    """Writes a random model of those in `FAMILIES`, with the tokenizer of a scratch model."""
    architecture, changes = ARCHITECTURES[model]
    heads = changes.get("num_attention_heads", 4)
    make_scratch(ScratchModel(vocabulary=300), texts, folder)
    scratch = json.loads((folder / "config.json").read_text())
    taken = {name: scratch[name] for name in ("vocab_size", "eos_token_id", "pad_token_id", "bos_token_id")}
    sizes = {"hidden_size": heads * HEAD_DIM, "max_position_embeddings": 1024}
    save_model(folder, architecture, **{**sizes, **changes, "head_dim": HEAD_DIM, **taken})
    return folder


def lora_of(folder: Path) -> TrainableConfig:
    """Returns adapters of all projections that a model has: experts have none."""
    experts = read_shape(folder).experts
    return LORA if experts is None else LORA.model_copy(update={"projections": LORA.projections[:4]})


class Trained:
    """A model whose weights are changed as by training steps, and the checkpoint that the trainer writes of it.

    Args:
        source: Folder of the model.
        out: Folder of the checkpoint.
        trainable: Weights that are changed.
    """

    def __init__(self, source: Path, out: Path, trainable: TrainableConfig) -> None:
        self.folder, shape = out, read_shape(source)
        self._before, self._after = (
            TrainedWeights(shape, TrainHardware(compute_dtype="fp32"), CPU, False, chosen)
            for chosen in (EVERYTHING, trainable)
        )
        self._before.load_checkpoint(source)
        self._after.load_checkpoint(source)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in self._after.optimizer.param_groups[0]["params"]:
                p.add_(0.1 * torch.randn(p.shape, generator=draw))
        self._after.refresh()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            self._after.save_checkpoint(source, out)
        finally:
            dist.destroy_process_group()
        if trainable.publishes_adapter:
            self.folder = with_base(out, source, out.with_name(f"{out.name}-with-base"))

    def gaps(self, groups: Sequence[GroupSamples], temperature: float, scratch: Path) -> tuple[float, float]:
        """Returns the mean distance of the engine's log-probabilities from the changed model's and the original's."""
        gaps = [gaps_to(weights.policy, groups, temperature, scratch).mean() for weights in (self._after, self._before)]
        return float(gaps[0]), float(gaps[1])


def gaps_to(policy: Policy, groups: Sequence[GroupSamples], temperature: float, scratch: Path) -> torch.Tensor:
    """Returns the distance of each sampled token's log-probability from a policy's, which reads whole packed groups."""
    packed: list[Group] = []
    for group in groups:
        told = [None if one.by_tool is None else one.by_tool.tolist() for one in group.completions]
        drawn = [(one.token_ids.tolist(), one.logprobs.tolist(), 1.0) for one in group.completions]
        packed.append(Group(group.prompt_token_ids, [Branch(*one, by) for one, by in zip(drawn, told, strict=True)]))
    batch = TrainerBatch(save_batch(packed, scratch / "sampled.safetensors"), policy.shape.vocab_size)
    flat = batch.flat(list(range(batch.shape[0])))
    with torch.no_grad():
        logprobs, *_ = policy(policy.inputs(flat, torch.float32, CPU), temperature)
    return (logprobs - flat.sampler_logprobs).abs()
