"""Tools of the trainer's benchmark: a random model, packed groups, a step in timed parts, and its FLOPs."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.shape import DecoderShape, read_shape
from stages.training.job import LossConfig, OptimizerConfig, TrainJob
from stages.training.model.master_weights import TrainedWeights
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job

PEAK_SIZES = (512, 1024, 2048, 4096)
RATE = 1e-6
CPU, ON_CPU = torch.device("cpu"), TrainHardware(device="cpu")


def save_random_model(folder: Path, **sizes: Any) -> Path:
    """Writes a random Llama in bf16, with transformers' own initialisation."""
    import transformers

    torch.manual_seed(0)
    sizes = {"tie_word_embeddings": True, "rope_theta": 1e5, "max_position_embeddings": 8192, **sizes}
    config = transformers.LlamaConfig(**sizes)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def draw_groups(count: int, prompt: int, branches: int, completion: int, vocabulary: int) -> list[Group]:
    """Returns random groups of equal sizes in tokens, with random advantages."""
    draw = np.random.default_rng(0)
    return [
        Group(
            draw.integers(vocabulary, size=prompt).tolist(),
            [
                Branch(draw.integers(vocabulary, size=completion).tolist(), [-1.0] * completion, draw.normal())
                for _ in range(branches)
            ],
        )
        for _ in range(count)
    ]


def save_batch(groups: Sequence[Group], path: Path) -> Path:
    """Packs groups, a row each, into one optimizer step."""
    batch, facts = pack_groups(groups, PackConfig(row_tokens=max(group.size_tokens for group in groups)))
    assert facts.rows == len(groups) and not facts.overlong_completions
    path.write_bytes(batch.to_bytes())
    return path


def needed_flops(shape: DecoderShape, groups: Sequence[Group]) -> float:
    """Returns the least FLOPs of the forward and backward passes over the trees of groups.

    Weight matrices count on every packed token, the head on completions only, and attention only on pairs that attend
    (a prompt causally; a completion to its prompt and causally to itself). Backward is twice forward; nothing is
    recomputed.
    """
    width, heads = shape.embed_dim, shape.heads * shape.head_dim
    layer = width * (2 * heads + 2 * shape.kv_heads * shape.head_dim + 3 * shape.hidden_dim)
    total = 0.0
    for group in groups:
        prompt, lengths = len(group.prompt), [len(branch.tokens) for branch in group.branches]
        pairs = _causal(prompt) + sum(length * prompt + _causal(length) for length in lengths)
        weights = (prompt + sum(lengths)) * shape.layers * layer + sum(lengths) * width * shape.vocab_size
        total += 2 * weights + 4 * heads * shape.layers * pairs
    return 3 * total


def _causal(length: int) -> int:
    return length * (length + 1) // 2


def finish(device: torch.device) -> None:
    """Waits until a device has finished its computations."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_peak(
    sizes: Sequence[int] = PEAK_SIZES, repeats: int = 5, device: torch.device = CPU, dtype: torch.dtype = torch.bfloat16
) -> float:
    """Returns the highest rate of products of square matrices over sizes and repeats, in FLOP/s."""
    best = 0.0
    for size in sizes:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        torch.matmul(a, b)
        for _ in range(repeats):
            finish(device)
            started = time.perf_counter()
            torch.matmul(a, b)
            finish(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best


class TimedWeights(TrainedWeights):
    """Weights that record the time of the optimizer."""

    optimizer_s = norm_s = 0.0

    def gradient_norm(self) -> Tensor:
        finish(self.device)
        started = time.perf_counter()
        norm = super().gradient_norm()
        finish(self.device)
        self.norm_s = time.perf_counter() - started
        return norm

    def step(self, config: OptimizerConfig, learning_rate: float, norm: Tensor) -> None:
        started = time.perf_counter()
        with torch.profiler.record_function("weights.step"):
            super().step(config, learning_rate, norm)
        finish(self.device)
        self.optimizer_s = self.norm_s + time.perf_counter() - started


class Bench:
    """The trainer of one process on one model, ready to take the same step again and again.

    Args:
        model: Hugging Face folder.
        hardware: Its device is named, not `auto`.
        weights: Class of the weights.
    """

    def __init__(
        self, model: Path, hardware: TrainHardware = ON_CPU, weights: type[TimedWeights] = TimedWeights
    ) -> None:
        self.model, self.shape, self.hardware = model, read_shape(model), hardware
        self.weights = weights(self.shape, hardware, torch.device(hardware.device), sharded=False)

    def job(self, batch_file: Path, scratch: Path) -> TrainJob:
        """Returns a job of one step over all rows of a batch; the ratio is 1, as on policy."""
        return train_job(
            checkpoint_dir=self.model, batch_file=batch_file, learning_rates=[RATE], hardware=self.hardware,
            loss=LossConfig(old_logprobs="trainer"), out_checkpoint_dir=scratch / "checkpoint",
            events_file=scratch / "events.jsonl",
        )  # fmt: skip

    def trainer(self, batch_file: Path) -> tuple[Trainer, list[int]]:
        """Returns a trainer that begins with the checkpoint's weights, and the rows of its step."""
        self.weights.load_checkpoint(self.model)
        batch = TrainerBatch(batch_file, self.shape.vocab_size)
        trainer = Trainer(self.weights, self.job(batch_file, batch_file.parent), batch, lambda: None)
        return trainer, batch.steps[0]

    def measure(self, batch_file: Path, repeats: int) -> dict[str, float]:
        """Returns the seconds of steps (medians, and the best) after a first one, which gives the gradient norm."""
        trainer, rows = self.trainer(batch_file)
        first = trainer.step(0, rows, 1)
        steps, optimizers = list[float](), list[float]()
        for _ in range(repeats):
            steps.append(trainer.step(0, rows, 1).seconds)
            optimizers.append(self.weights.optimizer_s)
        passes = [step - part for step, part in zip(steps, optimizers, strict=True)]
        return {
            "step_s": median(steps),
            "forward_backward_s": median(passes),
            "best_forward_backward_s": min(passes),
            "optimizer_s": median(optimizers),
            "tokens": first.tokens,
            "completion_tokens": first.loss_tokens,
            "grad_norm": first.grad_norm or 0.0,
        }
