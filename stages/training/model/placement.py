"""Builds a policy on its device, whole or sharded, and loads the weights of a folder into it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from artifacts.errors import BadInputError
from stages.models.adapters import adapter_of, base_of
from stages.models.shape import DecoderShape, read_shape
from stages.models.value_head import VALUE_HEAD_WEIGHT
from stages.training.checkpointing.checkpoint import StoredWeights, adapter_name, read_adapter
from stages.training.job import Dtype
from stages.training.model.lora import add_adapters
from stages.training.model.policy import CriticModel, DecoderModel, Policy
from stages.training.model.tensor_parallel import device_mesh, divide
from stages.training.trainable import EVERYTHING, TrainableConfig, is_adapter
from stages.training.worker_group.hardware import TrainHardware


def torch_dtype(name: Dtype) -> torch.dtype:
    """Returns torch's type for a precision of a config."""
    return torch.bfloat16 if name == "bf16" else torch.float32


def compute_dtype(hardware: TrainHardware, shape: DecoderShape) -> torch.dtype:
    """Returns the precision of forward and backward."""
    decided = hardware.on_this_machine(shape.embed_dim).compute_dtype
    assert decided != "auto"
    return torch_dtype(decided)


def place_policy(
    shape: DecoderShape,
    hardware: TrainHardware,
    device: torch.device,
    sharded: bool,
    parameter_dtype: torch.dtype,
    trainable: TrainableConfig = EVERYTHING,
) -> DecoderModel:
    """Builds a policy, or a critic if the shape has such a head, with uninitialised parameters.

    Args:
        shape: Sizes and switches of the decoder.
        hardware: Precision and memory savers.
        device: Device of the policy.
        sharded: Whether FSDP2 shards the weights over all processes and casts them to the hardware's compute type; with
            tensor parallelism each process of a group shards its part over the other groups.
        parameter_dtype: Type of the parameters; those of a value head have float32.
        trainable: Which parameters learn, and which adapters are added.
    """
    hardware.check_trainable(trainable)
    hardware.check_layers(shape.heads, shape.kv_heads, shape.embed_dim, shape.hidden_dim, divisible=shape.divisible)
    with torch.device("meta"):
        recompute = hardware.activation_checkpointing
        policy: DecoderModel = (
            CriticModel(shape, activation_checkpointing=recompute)
            if shape.value_head
            else Policy(shape, activation_checkpointing=recompute, chunk_tokens=hardware.logprob_chunk_tokens)
        )
        if trainable.parameters == "lora":
            add_adapters(policy.decoder, trainable, shape)
    policy.place_frequencies()
    for name, p in policy.named_parameters():
        p.requires_grad_(trainable.trains(name, shape.layers))
    policy.to(parameter_dtype)
    if isinstance(policy, CriticModel):
        policy.value_head.float()
    if hardware.compiles(device.type):
        policy.compile_forward()
    if sharded:
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype(hardware, shape), reduce_dtype=torch.float32)
        if hardware.tensor_parallel == 1:
            mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        else:
            grid = device_mesh(device.type, hardware.tensor_parallel)
            divide(policy, grid["tensor"])
            mesh = grid["data"]
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if hardware.cpu_offload else OffloadPolicy()
        for layer in policy.decoder.layers:
            fully_shard(
                layer,
                mesh=mesh,
                mp_policy=precision,
                offload_policy=offload,
                reshard_after_forward=hardware.reshard_after_forward,
            )
        if isinstance(policy, CriticModel):
            exact = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
            fully_shard(policy.value_head, mesh=mesh, mp_policy=exact, offload_policy=offload)
        fully_shard(policy, mesh=mesh, mp_policy=precision, offload_policy=offload)
    policy.to_empty(device="cpu" if hardware.cpu_offload else device)
    return policy


def shards(hardware: TrainHardware, device: torch.device) -> bool:
    """Returns whether FSDP2 shards the weights (`TrainHardware.shards_weights`).

    Raises:
        BadInputError: CPU offload is set for one process on the CPU, whose weights are in the host's memory anyway.
    """
    if hardware.cpu_offload and device.type == "cpu" and hardware.world == 1:
        raise BadInputError(
            "trainer.cpu_offload", "true, for one process on the CPU", "a CUDA device or several processes",
            "set it to false: nothing could be moved to the host's memory",
        )  # fmt: skip
    return hardware.shards_weights


def place(parameter: Tensor, tensor: Tensor) -> None:
    """Copies a full tensor into a parameter that is whole or sharded."""
    parameter = parameter.detach()
    if isinstance(parameter, DTensor):
        parameter.to_local().copy_(_part(parameter, tensor, dist.get_rank()))
    else:
        parameter.copy_(tensor)


def _part(parameter: DTensor, full: Tensor, rank: int) -> Tensor:
    """Returns the part of a full tensor that a process holds of a parameter, as a view.

    The last dimension of the mesh divides first: a tensor group divides a weight, FSDP2 divides each part by rows.
    """
    for size, placement in reversed(list(zip(parameter.device_mesh.shape, parameter.placements, strict=True))):
        rank, position = divmod(rank, size)
        dim = getattr(placement, "dim", None)
        if dim is not None:  # else all of these processes hold the same
            length = full.shape[dim]
            each = -(-length // size)
            first = min(position * each, length)
            full = full.narrow(dim, first, min(each, length - first))
    return full


def gather(parameter: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Returns a parameter, whole or sharded, as a full tensor on the CPU of the first process (collective).

    Each process casts its part and sends it, so that only the first one ever holds a full tensor, of type `dtype`.

    Returns:
        The tensor; None on all processes but the first.
    """
    parameter, rank = parameter.detach(), dist.get_rank()
    if not isinstance(parameter, DTensor):
        return parameter.to("cpu", dtype) if rank == 0 else None
    own = parameter.to_local().to(dtype)
    full = torch.empty(parameter.shape, dtype=dtype, device="meta" if rank else own.device)
    parts: dict[int, tuple[int, Tensor]] = {}
    for peer in range(dist.get_world_size()):
        part = _part(parameter, full, peer)
        if part.numel():
            parts.setdefault(int(part.storage_offset()), (peer, part))  # of equal parts, only the first is sent
    if rank:
        _transfer([dist.P2POp(dist.isend, own.contiguous(), 0) for peer, _ in parts.values() if peer == rank])
        return None
    received = [(peer, part, part.contiguous()) for peer, part in parts.values() if peer]
    _transfer([dist.P2POp(dist.irecv, buffer, peer) for peer, _, buffer in received])
    for _, part, buffer in received:
        if buffer is not part:
            part.copy_(buffer)
    _part(parameter, full, 0).copy_(own)
    return full.cpu()


def gather_rows(parameter: Tensor, rows: Tensor) -> Tensor:
    """Returns rows of a parameter, whole or sharded, as float32 on the CPU of every process (collective).

    Args:
        parameter: A vector or a matrix.
        rows: [R] int64, ascending.
    """
    parameter = parameter.detach()
    if not isinstance(parameter, DTensor):
        return parameter[rows.to(parameter.device)].to("cpu", torch.float32)
    own, rank = parameter.to_local(), dist.get_rank()
    gathered = torch.zeros(rows.numel(), *parameter.shape[1:], dtype=torch.float32, device=own.device)
    full = torch.empty(parameter.shape, device="meta")
    parts = [_part(parameter, full, peer) for peer in range(rank + 1)]
    start = int(parts[rank].storage_offset())
    # Of equal parts, only the first one counts.
    if own.numel() and all(int(part.storage_offset()) != start or not part.numel() for part in parts[:rank]):
        first, column = divmod(start, full[0].numel()) if full.dim() > 1 else (start, 0)
        inside = (rows >= first) & (rows < first + own.shape[0])
        values = own[(rows[inside] - first).to(own.device)].float()
        place_at = gathered[:, column : column + own.shape[1]] if full.dim() > 1 else gathered
        place_at[inside.to(own.device)] = values
    dist.all_reduce(gathered)
    return gathered.cpu()


def _transfer(operations: list[dist.P2POp]) -> None:
    if operations:
        for request in dist.batch_isend_irecv(operations):
            request.wait()


def fill_critic(
    parameters: Mapping[str, Tensor], folder: Path, shape: DecoderShape, heartbeat: Callable[[], None]
) -> None:
    """Copies the weights of a critic or of a policy into the parameters of a critic.

    A policy's output head is left out. The value head then begins at 0, so that the values do not depend on the text
    until they are trained.

    Raises:
        BadInputError: The folder holds another decoder, or a critic with another head.
    """
    check_value_head(folder, shape)
    if read_shape(folder).value_head is None:
        others = {name: p for name, p in parameters.items() if name != VALUE_HEAD_WEIGHT}
        fill(others, folder, replace(shape, value_head=None), heartbeat)
        place(parameters[VALUE_HEAD_WEIGHT], torch.zeros(1, shape.embed_dim))
    else:
        fill(parameters, folder, shape, heartbeat)


def check_value_head(folder: Path, shape: DecoderShape) -> None:
    """Checks that a folder holds a language model, or a critic with the head of `shape`.

    The heads differ in the meaning of their weight, not in its shape, so loading it would not fail.

    Raises:
        BadInputError: The folder holds a critic with another head.
    """
    stored = read_shape(folder).value_head
    if stored not in (None, shape.value_head):
        remedy = "set value.head to it"
        raise BadInputError(str(folder), f"a critic with a {stored} head", f"a {shape.value_head} head", remedy)


def fill(parameters: Mapping[str, Tensor], folder: Path, shape: DecoderShape, heartbeat: Callable[[], None]) -> None:
    """Copies the weights of a Hugging Face folder into parameters.

    Args:
        parameters: Parameters by policy name.
        folder: Hugging Face folder.
        shape: Shape of the decoder.
        heartbeat: Called after each tensor to report progress.

    Raises:
        BadInputError: The folder does not hold this decoder.
    """
    stored = StoredWeights(folder)
    stored.check(shape)
    for name, tensor in stored.read(parameters, lambda name: parameters[name].shape):
        place(parameters[name], tensor)
        heartbeat()


def load_reference(
    folder: Path,
    vocab_size: int,
    hardware: TrainHardware,
    device: torch.device,
    sharded: bool,
    heartbeat: Callable[[], None] = lambda: None,
) -> Policy:
    """Loads a model that is not trained, such as the reference of a KL term, in the compute precision.

    An adapter stays beside the weights, as in training: most of it would be lost in a sum that is rounded to bf16.
    With tensor parallelism or experts, for which there are no adapters, it is added to the weights.

    Args:
        folder: Hugging Face folder; the model may have another size than the trained one.
        vocab_size: Vocabulary size of the trained model.
        hardware: Precision and memory savers.
        device: Device of the model.
        sharded: Whether the weights are sharded over all processes.
        heartbeat: Called after each tensor to report progress.

    Raises:
        BadInputError: The model has another vocabulary, or the folder does not hold the tensors of its config.json.
    """
    shape = read_shape(folder)
    if shape.vocab_size != vocab_size:
        raise BadInputError(
            f"reference {folder}", f"{shape.vocab_size} token ids", f"{vocab_size}, as the trained model"
        )
    config = adapter_of(folder) if hardware.tensor_parallel == 1 and shape.experts is None else None
    trainable = EVERYTHING if config is None else TrainableConfig.of(config)
    policy = place_policy(shape, hardware, device, sharded, compute_dtype(hardware, shape), trainable)
    assert isinstance(policy, Policy)
    policy.requires_grad_(False)
    parameters = dict(policy.named_parameters())
    if config is not None:
        stored, folder = read_adapter(folder), base_of(folder)
        for name in filter(is_adapter, list(parameters)):
            place(parameters.pop(name), stored[adapter_name(name, shape)])
            heartbeat()
    fill(parameters, folder, shape, heartbeat)
    return policy
