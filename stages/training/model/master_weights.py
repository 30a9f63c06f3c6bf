"""Master weights with their AdamW state, and the copy of them that the model computes with.

Master weights, AdamW's moments and the sums of gradients over micro-batches have the precision `master_dtype`. A single
process keeps the masters and a copy in the compute precision, which is cast once per optimizer step; if both precisions
are the same, it computes with the masters. Several processes shard the masters with FSDP2, which casts when it gathers
them and reduces gradients in float32. A frozen parameter has no separate master, no gradient and no optimizer state.
The head of a critic computes in float32 with all of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from artifacts.errors import BadInputError
from stages.models.adapters import base_of, has_adapter, read_adapter_config
from stages.models.shape import DecoderShape
from stages.models.tensors import FILE_BYTES
from stages.processes.memory import refused_allocation
from stages.training.checkpointing.checkpoint import (
    StoredWeights,
    adapter_name,
    read_adapter,
    write_adapter,
    write_checkpoint,
)
from stages.training.checkpointing.state_files import HeartbeatLoadPlanner, HeartbeatSavePlanner, StateWriter
from stages.training.job import Dtype, OptimizerConfig
from stages.training.model.lora import initial_adapter
from stages.training.model.movement import PUBLISHED, sampled_rows
from stages.training.model.placement import (
    compute_dtype,
    fill,
    fill_critic,
    gather,
    gather_rows,
    place,
    place_policy,
    torch_dtype,
)
from stages.training.trainable import EVERYTHING, TrainableConfig, is_adapter
from stages.training.worker_group.hardware import TrainHardware


class TrainedWeights:
    """The policy, its master weights and its optimizer, which are empty until a checkpoint or a state is loaded.

    Args:
        shape: Sizes and switches of the decoder.
        hardware: Precision and memory savers.
        device: Device of the policy.
        sharded: Whether the weights are sharded over all processes; False needs a single process.
        trainable: Which parameters learn.
        heartbeat: Called for each tensor that is loaded or saved, to report progress.
        master_dtype: Precision of the parameters that learn, of their gradients and of AdamW's moments.

    Attributes:
        masters: Every parameter by policy name: in `master_dtype` if it learns (a value head may keep its float32),
            else the model's own.
    """

    def __init__(
        self,
        shape: DecoderShape,
        hardware: TrainHardware,
        device: torch.device,
        sharded: bool,
        trainable: TrainableConfig = EVERYTHING,
        heartbeat: Callable[[], None] = lambda: None,
        master_dtype: Dtype = "fp32",
    ) -> None:
        self.shape, self.device, self.sharded, self.trainable = shape, device, sharded, trainable
        self.master_dtype: Dtype = master_dtype
        self._heartbeat = heartbeat
        self._scale = trainable.adapter.scale if trainable.adapter else 1.0
        self.dtype, masters = compute_dtype(hardware, shape), torch_dtype(master_dtype)
        parameter_dtype = masters if sharded else self.dtype
        policy = place_policy(shape, hardware, device, sharded, parameter_dtype, trainable)
        self.masters: dict[str, nn.Parameter] = dict(policy.named_parameters())
        if not sharded and self.dtype != masters:
            for name, p in policy.named_parameters():
                if p.requires_grad and p.dtype != masters:
                    self.masters[name] = nn.Parameter(torch.empty_like(p, dtype=masters))
                    p.register_post_accumulate_grad_hook(self._collector(self.masters[name]))
        self.policy = policy
        self.optimizer = torch.optim.AdamW([p for p in self.masters.values() if p.requires_grad], lr=0.0, fused=True)

    @staticmethod
    def _collector(master: nn.Parameter) -> Any:
        """Returns a hook that adds a gradient of the compute copy to the gradient of its master."""

        def collect(p: Tensor) -> None:
            if p.grad is not None:
                if master.grad is None:
                    master.grad = p.grad.to(master.dtype)
                else:
                    master.grad.add_(p.grad)
                p.grad = None

        return collect

    def reset_optimizer(self) -> None:
        """Resets step count and moments to zero."""
        for p in self.optimizer.param_groups[0]["params"]:
            self.optimizer.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }

    def load_checkpoint(self, folder: Path) -> None:
        """Loads the weights of a Hugging Face folder, of any float dtype, and resets the optimizer.

        Adapters are those of the folder if this model publishes adapters, else new ones.

        Raises:
            BadInputError: The folder does not hold this decoder, or its adapter has other settings.
        """
        stored = self._load_base(folder)
        for name, p in self.masters.items():
            if is_adapter(name):
                place(p, stored[adapter_name(name, self.shape)].float() if stored else initial_adapter(name, p.shape))
                self._heartbeat()
        self.reset_optimizer()
        self.refresh()

    @property
    def publishes_adapter(self) -> bool:
        """Whether checkpoints hold only the adapter. Those of a critic do not: its base is not the policy's."""
        return self.trainable.publishes_adapter and self.shape.value_head is None

    def _load_base(self, folder: Path) -> dict[str, Tensor]:
        """Loads all weights but adapters; returns the folder's adapter if training continues it, else no tensors.

        An adapter that is not continued is added to the weights.
        """
        stored: dict[str, Tensor] = {}
        if self.publishes_adapter and has_adapter(folder):
            assert self.trainable.adapter is not None
            self.trainable.adapter.check_continues(read_adapter_config(folder))
            stored, folder = read_adapter(folder), base_of(folder)
        load = fill_critic if self.shape.value_head else fill
        load({name: p for name, p in self.masters.items() if not is_adapter(name)}, folder, self.shape, self._heartbeat)
        return stored

    def refresh(self) -> None:
        """Casts the masters into the compute copy."""
        with torch.no_grad():
            for name, p in self.policy.named_parameters():
                if p is not self.masters[name]:
                    p.copy_(self.masters[name])

    def gradient_norm(self) -> Tensor:
        """Returns the norm of the whole gradient, a scalar that the host has not read yet (collective)."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.masters.values() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def drop_gradient(self) -> None:
        """Forgets the gradient, so that the step changes nothing."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, config: OptimizerConfig, learning_rate: float, norm: Tensor) -> None:
        """Clips the gradient, updates the masters and refreshes the compute copy.

        Args:
            config: AdamW's constants.
            learning_rate: Learning rate of this step.
            norm: What `gradient_norm` returned, finite.
        """
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.masters.values(), config.max_grad_norm, norm)
        for group in self.optimizer.param_groups:
            group.update(lr=learning_rate, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay)
        self.optimizer.step()
        self.drop_gradient()
        self.refresh()

    def _full(self, name: str, dtype: torch.dtype) -> Tensor | None:
        """Returns a weight with its adapters added in, on the CPU; None except on the first process (collective).

        torch's `get_model_state_dict` is not used: it gathers all weights in the master precision first, and reports no
        progress.

        Args:
            name: Policy name.
            dtype: Type of the returned tensor.
        """
        weight = gather(self.masters[name], dtype)
        self._heartbeat()
        if (adapter := self._adapter_of(name)) is None:
            return weight
        a, b = (gather(part, torch.float32) for part in adapter)
        self._heartbeat()
        return None if weight is None or a is None or b is None else (self._scale * (b @ a)).add_(weight).to(dtype)

    def _adapter_of(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Returns the matrices A and B of a weight's adapter; None if it has none."""
        a, b = (self.masters.get(f"{name.removesuffix('.weight')}.lora_{side}.weight") for side in "ab")
        return None if a is None or b is None else (a, b)

    def sample(self) -> dict[str, Tensor]:
        """Returns rows of the weights that can move, with adapters added in (collective).

        Returns:
            Rows by policy name (see `sampled_rows`), float32 on the CPU, equal on all processes. Empty with masters in
            bf16: what their steps lose to rounding is gone before it could be seen.
        """
        sampled: dict[str, Tensor] = {}
        for name, shape in self._shapes().items() if self.master_dtype == "fp32" else ():
            adapter = self._adapter_of(name)
            if self.masters[name].requires_grad or adapter:
                rows = sampled_rows(shape)
                sampled[name] = gather_rows(self.masters[name], rows)
                if adapter:
                    a, b = gather_rows(adapter[0], torch.arange(len(adapter[0]))), gather_rows(adapter[1], rows)
                    if self.publishes_adapter:  # the engine rounds the adapter, not its sum with the weights
                        sampled[name] = self._scale * (b @ a)
                        sampled[name + PUBLISHED] = self._scale * (b.bfloat16().float() @ a.bfloat16().float())
                    else:
                        sampled[name] += self._scale * (b @ a)
                self._heartbeat()
        return sampled

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in self.masters.items() if not is_adapter(name)}

    def save_checkpoint(self, source: Path, out: Path, file_bytes: int = FILE_BYTES) -> None:
        """Writes a Hugging Face folder: the adapter, or all weights (collective; the first process writes).

        Args:
            source: Folder of the model's other files.
            out: Folder to make.
            file_bytes: Largest size of a file; the first process holds one at a time.
        """
        dtype = torch.bfloat16
        if self.publishes_adapter:
            assert self.trainable.adapter is not None
            adapter = {
                adapter_name(n, self.shape): gather(p, torch.float32) for n, p in self.masters.items() if is_adapter(n)
            }
            write_adapter(source, out, self.trainable.adapter, adapter)
            return
        write_checkpoint(
            source, out, self._shapes(), lambda name: self._full(name, dtype), dtype,
            heartbeat=self._heartbeat, file_bytes=file_bytes, value_head=self.shape.value_head,
        )  # fmt: skip

    def save_average(self, reference: Path, decay: float, out: Path) -> None:
        """Writes decay x reference + (1 - decay) x weights as a Hugging Face folder (collective; the first writes).

        The average is written in float32: with a decay near 1, bf16 would lose most of each step to rounding.

        Args:
            reference: Hugging Face folder of the old average.
            decay: Weight of the old average, 0 to 1.
            out: Folder to make.

        Raises:
            BadInputError: The reference has another shape.
        """
        stored, shapes = StoredWeights(reference), self._shapes()
        stored.check(self.shape)

        def averaged(name: str) -> Tensor | None:
            new = self._full(name, torch.float32)
            if new is None:
                return None
            [(_, old)] = stored.read([name], shapes.__getitem__)
            self._heartbeat()
            return torch.lerp(new, old.float(), decay)

        write_checkpoint(reference, out, shapes, averaged, torch.float32, heartbeat=self._heartbeat)

    def _state(self) -> dict[str, Tensor]:
        """Returns what a state holds. The base of an adapter that is published alone is not in it."""
        state: dict[str, Tensor] = {}
        for name, p in self.masters.items():
            if self.publishes_adapter and not is_adapter(name):
                continue
            state[f"weights.{name}"] = p.detach()
            for key, moment in self.optimizer.state.get(p, {}).items():
                state[f"{key}.{name}"] = moment
        return state

    def save_state(self, out: Path) -> None:
        """Writes masters and optimizer state as a torch distributed checkpoint (collective)."""
        out.mkdir(parents=True, exist_ok=True)
        state = self._state()
        writer = StateWriter(out, sum(tensor.nbytes for tensor in state.values()) // dist.get_world_size())
        save(dict(state), storage_writer=writer, planner=HeartbeatSavePlanner(self._heartbeat))

    def load_state(self, folder: Path, checkpoint: Path | None = None) -> None:
        """Loads a state that `save_state` wrote with any number of processes (collective).

        Weights and moments that were saved in the other precision are cast; to bf16 they are rounded to nearest.

        Args:
            folder: The state.
            checkpoint: The checkpoint that belongs to it, which leads to the base of an adapter.

        Raises:
            BadInputError: The folder is not a state of this decoder.
            RuntimeError: Another process was lost, or memory was refused.
        """
        if checkpoint is not None and self.publishes_adapter:
            self._load_base(checkpoint)
        self.reset_optimizer()
        try:
            load(
                dict(self._state()),
                storage_reader=FileSystemReader(folder),
                planner=HeartbeatLoadPlanner(self._heartbeat),
            )
        except (CheckpointException, OSError, ValueError) as error:
            if refused_allocation(str(error)):
                raise RuntimeError(str(error)) from error
            raise BadInputError(str(folder), f"unreadable ({error})", "an optimizer state of this model") from error
        self.refresh()
