"""Full weights of a checkpoint folder, its adapter added in, one tensor at a time.

The trainer has the same sum in torch (`stages.training.checkpointing.checkpoint`). This one is in numpy, because export
has no other need of torch, whose import takes longer than writing a small model.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_WEIGHTS, open_regular
from stages.models.adapters import (
    ADAPTER_WEIGHTS,
    base_of,
    has_adapter,
    read_adapter_config,
    tensor_name,
)
from stages.models.tensor_file import ITEM_BYTES, data_start, read_header
from stages.models.tensors import StoredTensor, stored_tensors

Floats = NDArray[np.float32]


def full_tensors(folder: Path) -> Iterator[tuple[str, Floats]]:
    """Yields the tensors of a checkpoint by Hugging Face name, in float32: W, or W + scale x B A.

    Raises:
        BadInputError: A file is missing or damaged.
    """
    adapter = _adapter(folder) if has_adapter(folder) else {}
    scale = np.float32(read_adapter_config(folder).scale if adapter else 0.0)
    for name, tensor in stored_tensors(base_of(folder)).items():
        values = _values(tensor)
        if (side := adapter.get(tensor_name(name, "A"))) is not None:
            product: Floats = _values(adapter[tensor_name(name, "B")]) @ _values(side)
            values += scale * product
        yield name, values


def _adapter(folder: Path) -> dict[str, StoredTensor]:
    path = folder / ADAPTER_WEIGHTS
    return {
        name: StoredTensor(path, entry["dtype"], tuple(entry["shape"]), tuple(entry["data_offsets"]))
        for name, entry in read_header(path).items()
    }


def _values(tensor: StoredTensor) -> Floats:
    with open_regular(tensor.file, LARGEST_WEIGHTS) as file:
        file.seek(data_start(tensor.file) + tensor.span[0])
        content = file.read(math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype])
    match tensor.dtype:
        case "BF16":
            values = (np.frombuffer(content, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "F16" | "F32":
            values = np.frombuffer(content, "<f2" if tensor.dtype == "F16" else "<f4").astype(np.float32)
        case other:
            raise BadInputError(str(tensor.file), f"weights of type {other}", "BF16, F16 or F32")
    return values.reshape(tensor.shape)
