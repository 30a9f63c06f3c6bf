"""float32 master weights with AdamW state, and the compute copy the model runs on.

One process keeps masters beside a bf16 copy that is cast once an optimizer step; several processes shard the masters
with FSDP2, which casts as it gathers. Both add up gradients in float32 over micro-batches.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from artifacts.errors import BadInputError
from stages.training.checkpoint import StoredWeights, write_checkpoint
from stages.training.job import OptimizerConfig, TrainHardware
from stages.training.placement import compute_dtype, fill, place_policy
from stages.training.shape import DecoderShape


class TrainedWeights:
    """The policy and everything an optimizer step changes.

    Args:
        shape: sizes and switches of the decoder.
        hardware: precision and memory savers.
        device: where the policy lives.
        sharded: shard over all processes; False needs a world of one.
    """

    def __init__(self, shape: DecoderShape, hardware: TrainHardware, device: torch.device, sharded: bool) -> None:
        self.shape, self.device, self.sharded = shape, device, sharded
        self.dtype = compute_dtype(hardware)
        policy = place_policy(shape, hardware, device, sharded, torch.float32 if sharded else self.dtype)
        self.masters: dict[str, nn.Parameter] = dict(policy.named_parameters())
        if not sharded and self.dtype != torch.float32:
            self.masters = {
                name: nn.Parameter(torch.empty_like(p, dtype=torch.float32)) for name, p in self.masters.items()
            }
            for name, p in policy.named_parameters():
                p.register_post_accumulate_grad_hook(self._collector(self.masters[name]))
        self.policy = policy
        self.optimizer = torch.optim.AdamW(self.masters.values(), lr=0.0, fused=True)
        self.reset_optimizer()

    @staticmethod
    def _collector(master: nn.Parameter) -> Any:
        def collect(p: Tensor) -> None:
            if p.grad is not None:
                if master.grad is None:
                    master.grad = p.grad.float()
                else:
                    master.grad.add_(p.grad)
                p.grad = None

        return collect

    def reset_optimizer(self) -> None:
        """Forgets the moments: as before the first step."""
        for p in self.masters.values():
            self.optimizer.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=self.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }

    def load_checkpoint(self, folder: Path) -> None:
        """Takes over bf16 (or other) weights of a Hugging Face folder as masters, with a fresh optimizer.

        Raises:
            BadInputError: the folder does not hold this decoder.
        """
        fill(self.masters, folder, self.shape)
        self.reset_optimizer()
        self.refresh()

    def refresh(self) -> None:
        """Casts the masters into the compute copy."""
        with torch.no_grad():
            for name, p in self.policy.named_parameters():
                if p is not self.masters[name]:
                    p.copy_(self.masters[name])

    def step(self, config: OptimizerConfig, learning_rate: float) -> float:
        """Clips, updates and refreshes.

        Args:
            config: AdamW's constants.
            learning_rate: of this step.

        Returns:
            The norm of the whole gradient before clipping.
        """
        gradients = [p.grad for p in self.masters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.masters.values(), config.max_grad_norm, norm)
        for group in self.optimizer.param_groups:
            group.update(lr=learning_rate, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.refresh()
        return float(norm)

    def _full(self) -> Iterator[tuple[str, Tensor]]:
        for name, master in self.masters.items():
            yield name, master.full_tensor() if isinstance(master, DTensor) else master

    def save_checkpoint(self, source: Path, out: Path) -> None:
        """Writes the weights as a Hugging Face folder (collective; the first process writes)."""
        first = dist.get_rank() == 0
        full = {}
        for name, tensor in self._full():
            if first:
                full[name] = tensor.detach().to("cpu", torch.bfloat16)
        if first:
            write_checkpoint(source, out, full)

    def save_average(self, reference: Path, decay: float, out: Path) -> None:
        """Writes decay x reference + (1 - decay) x weights as a Hugging Face folder (collective; the first writes).

        It is kept in float32: with a decay near 1, bf16 would lose most of a step to rounding.
        """
        first = dist.get_rank() == 0
        stored = StoredWeights(reference)
        stored.check(self.shape, self.masters)
        mean: dict[str, Tensor] = {}
        for name, tensor in self._full():
            if first:
                ((_, old),) = stored.read([name], lambda name: self.masters[name].shape)
                mean[name] = torch.lerp(tensor.detach().float().cpu(), old.float(), decay)
        if first:
            write_checkpoint(reference, out, mean, torch.float32)

    def _state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, p in self.masters.items():
            state[f"weights.{name}"] = p.detach()
            for key in ("exp_avg", "exp_avg_sq", "step"):
                state[f"{key}.{name}"] = self.optimizer.state[p][key]
        return state

    def save_state(self, out: Path) -> None:
        """Writes masters and optimizer state as a torch distributed checkpoint (collective)."""
        out.mkdir(parents=True, exist_ok=True)
        writer = FileSystemWriter(out, sync_files=False)
        save(dict(self._state()), storage_writer=writer)

    def load_state(self, folder: Path) -> None:
        """Takes over a state that `save_state` wrote, under any number of processes.

        Raises:
            BadInputError: the folder is not a state of this decoder.
        """
        try:
            load(dict(self._state()), storage_reader=FileSystemReader(folder))
        except (CheckpointException, OSError, ValueError, RuntimeError) as error:
            raise BadInputError(str(folder), f"unreadable ({error})", "a training state of this model") from error
        self.refresh()
