"""The real trainer on tensors without data: memory of a training step for models that fit no machine here.

`TrainedWeights` and `Trainer.step` run unchanged. Parameters and activations are fake tensors, which have shapes, types
and storages of a size but no data; the process group is torch's fake one, in which collectives return at once. Tensors
of the batch stay real, because the trainer computes indices from them.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.numpy import save_file
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from flows.config.model_size import LayerSizes
from stages.models.rope import Rope
from stages.models.shape import DecoderShape
from stages.training.job import LossConfig, OptimizerConfig
from stages.training.model.master_weights import TrainedWeights
from stages.training.model.policy import DecoderModel
from stages.training.trainable import EVERYTHING, TrainableConfig
from stages.training.trainer import Trainer
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job

CPU = torch.device("cpu")


def decoder_shape(shape: LayerSizes, head_dim: int = 128) -> DecoderShape:
    """Returns the decoder of Qwen2.5's kind with the sizes of a plan."""
    return DecoderShape(
        family="qwen2", vocab_size=shape.vocabulary, embed_dim=shape.hidden, layers=shape.layers,
        heads=shape.queries // head_dim, kv_heads=shape.keys // head_dim, head_dim=head_dim,
        hidden_dim=shape.intermediate, norm_eps=1e-6, rope=Rope(1e6, head_dim), max_positions=32_768,
        tied=shape.tied, qkv_bias=True,
    )  # fmt: skip


class _RealBesideFake(TorchDispatchMode):
    """Computes operations that have only real tensors; the value of a fake tensor is 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._fused_adamw_.default:
            return None  # the kernel works in place; its fake form would make copies
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        fake = any(isinstance(x, FakeTensor) for x in tensors)
        if fake and func is torch.ops.aten._local_scalar_dense.default:
            return True if tensors[0].dtype == torch.bool else 1.0 if tensors[0].is_floating_point() else 1
        if tensors and not fake:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _really(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call


@contextmanager
def _parameters_without_data(mode: FakeTensorMode) -> Generator[None]:
    """Makes policies allocate their parameters, which begin on the meta device, as fake tensors."""
    real = DecoderModel.to_empty

    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def apart(self: ShardingPropagator, schema: Any) -> Any:
        # DTensor tries each operation on tensors of global size, which no device holds.
        with _disable_current_modes():
            return propagate(self, schema)

    def to_empty(self: DecoderModel, *, device: Any, recurse: bool = True) -> DecoderModel:
        with mode:
            return real(self, device=device, recurse=recurse)

    DecoderModel.to_empty, ShardingPropagator._propagate_tensor_meta_non_cached = to_empty, apart
    try:
        yield
    finally:
        DecoderModel.to_empty, ShardingPropagator._propagate_tensor_meta_non_cached = real, propagate


def row_columns(rows: int, prompt: int, completions: int, length: int) -> dict[str, Any]:
    """Returns a packed batch of one mini-batch, whose rows hold a prompt and completions of equal length."""
    import numpy as np

    width = prompt + completions * length
    segment = np.concatenate([np.zeros(prompt), 1 + np.repeat(np.arange(completions), length)]).astype(np.int32)
    position = np.concatenate([np.arange(prompt), prompt + np.tile(np.arange(length), completions)]).astype(np.int32)
    first = (np.arange(rows) * (completions + 1))[:, None].astype(np.int32)
    mask = np.tile((segment > 0).astype(np.uint8), (rows, 1))
    return {
        "tokens": np.ones((rows, width), np.int32), "position_ids": np.tile(position, (rows, 1)),
        "segment_ids": segment + first, "parent_ids": np.zeros_like(segment) + first, "completion_mask": mask,
        "sampler_logprobs": -mask.astype(np.float32), "advantages": mask.astype(np.float32),
        "minibatch": np.zeros(rows, np.int32),
    }  # fmt: skip


def simulated_step(
    folder: Path, shape: DecoderShape, hardware: TrainHardware, columns: dict[str, Any],
    *, optimizer: OptimizerConfig | None = None, trainable: TrainableConfig = EVERYTHING,
) -> dict[str, int]:  # fmt: skip
    """Runs an optimizer step of the first of `hardware.world` processes.

    Returns:
        Bytes: `held` before the step, `peak` of the step, and at its peak the tracker's kinds of memory.
    """
    optimizer = optimizer or OptimizerConfig()
    path = folder / "batch.safetensors"
    save_file(columns, path)
    batch = TrainerBatch(path, shape.vocab_size)
    job = train_job(
        checkpoint_dir=folder, batch_file=path, learning_rates=[1e-6], hardware=hardware, optimizer=optimizer,
        trainable=trainable, loss=LossConfig(), out_checkpoint_dir=folder / "out", events_file=folder / "events",
    )  # fmt: skip
    dist.init_process_group("fake", rank=0, world_size=hardware.world, store=FakeStore())
    try:
        sharded, fake = hardware.world > 1, FakeTensorMode(allow_non_fake_inputs=True)
        with _parameters_without_data(fake):
            weights = TrainedWeights(shape, hardware, CPU, sharded, trainable, master_dtype=optimizer.master_dtype)
            weights.reset_optimizer()  # as `load_state`, which would read files
            for name in ("flat", "loss_sequences"):
                setattr(batch, name, _really(getattr(batch, name)))
            weights.policy.inputs = _really(weights.policy.inputs)
            tracker = FSDPMemTracker(weights.policy, weights.optimizer) if sharded else MemTracker()
            trainer = Trainer(weights, job, batch, tracker.reset_mod_stats)  # it tracks one forward pass at a time
            with fake:
                if sharded:
                    tracker.track_inputs(())
                tracker.track_external(weights.policy, weights.optimizer, *weights.masters.values())
                with _RealBesideFake(), tracker:
                    held = tracker.get_tracker_snapshot("current")[CPU]["Total"]
                    trainer.step(0, batch.steps[0], 1)
                    peak = tracker.get_tracker_snapshot("peak")[CPU]
        return {"held": held, **{getattr(k, "name", str(k)).lower(): v for k, v in peak.items()}}
    finally:
        dist.destroy_process_group()
