"""Refuses a row that cannot fit into the memory of a process, before the first step."""

from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from artifacts.errors import BadInputError
from stages.models.shape import DecoderShape
from stages.processes.memory import limit_bytes
from stages.training.model.master_weights import TrainedWeights
from stages.training.trainable import TrainableConfig


def least_activation_bytes_a_token(
    shape: DecoderShape, trainable: TrainableConfig, width: int, *, checkpointing: bool, tensor_parallel: int = 1
) -> int:
    """Returns a lower bound of the bytes that the forward pass keeps for each token of a row.

    Each layer from the lowest trained one on keeps its input (E numbers), and without activation checkpointing also
    queries and attention outputs (2 H D), keys and values (2 K D), and the two factors of the feed-forward product
    (2 F). Its other tensors are left out, so a row that this bound refuses never fits.

    Args:
        shape: Shape of the decoder: width E, H query heads and K key heads of width D, feed-forward width F.
        trainable: Which parameters learn.
        width: Bytes of a number in the compute type.
        checkpointing: Whether layers are recomputed in backward.
        tensor_parallel: Number of processes that divide all but the input of a layer among them.
    """
    layers = shape.layers
    if trainable.parameters == "top_layers":
        layers = sum(trainable.trains(f"decoder.layers.{n}.mlp.w1.weight", layers) for n in range(layers))
    numbers = shape.embed_dim
    if not checkpointing:
        numbers += (2 * (shape.heads + shape.kv_heads) * shape.head_dim + 2 * shape.hidden_dim) // tensor_parallel
    return layers * numbers * width


def check_rows_fit(row_tokens: list[int], bytes_a_token: int, free_bytes: int, batch_file: Path) -> None:
    """Refuses a batch whose longest row cannot fit; a row is never divided.

    Args:
        row_tokens: Tokens of each row.
        bytes_a_token: Lower bound of the memory of a token.
        free_bytes: Upper bound of the memory that the weights leave.
        batch_file: Name of the batch, for the error.

    Raises:
        BadInputError: The longest row needs more memory than there is.
    """
    longest = max(row_tokens)
    needed = longest * bytes_a_token
    if needed <= free_bytes:
        return
    most = max(0, free_bytes) // bytes_a_token
    raise BadInputError(
        f"{batch_file}: row {row_tokens.index(longest)}",
        f"{longest} tokens, whose activations take at least {needed / 2**30:.1f} GiB",
        f"at most {most} tokens, because the weights leave {max(0, free_bytes) / 2**30:.1f} GiB of memory",
        "lower pack.row_tokens, or set trainer.activation_checkpointing = true",
    )


def free_bytes(weights: TrainedWeights, device: torch.device) -> int:
    """Returns an upper bound of memory for activations: the device's or the machine's, minus this process's tensors.

    Other processes on the device or machine do not count.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory - torch.cuda.memory_allocated(device)
    capacity = limit_bytes() or psutil.virtual_memory().total
    moments = (value for state in weights.optimizer.state.values() for value in state.values())
    tensors = (*weights.policy.parameters(), *weights.masters.values(), *moments)
    sizes = {local.data_ptr(): local.nbytes for local in map(_local, tensors)}
    return capacity - sum(sizes.values())


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
