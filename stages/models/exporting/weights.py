"""Full weights of a checkpoint folder, its adapter added in, one tensor at a time.

The trainer has the same sum in torch (`stages.training.checkpointing.checkpoint`). This one is in numpy, because export
has no other need of torch, whose import takes longer than writing a small model.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import BadInputError
from stages.models.adapters import (
    ADAPTER_WEIGHTS,
    base_of,
    has_adapter,
    read_adapter_config,
    tensor_name,
)
from stages.models.tensor_file import StoredTensor, read_header, to_floats
from stages.models.tensors import stored_tensors

Floats = NDArray[np.float32]


def full_tensors(folder: Path) -> Iterator[tuple[str, Floats]]:
    """Yields the tensors of a checkpoint by Hugging Face name, in float32: W, or W + scale x B A.

    Raises:
        BadInputError: A file is missing or damaged.
    """
    adapter = read_header(folder / ADAPTER_WEIGHTS) if has_adapter(folder) else {}
    scale = np.float32(read_adapter_config(folder).scale if adapter else 0.0)
    for name, tensor in stored_tensors(base_of(folder)).items():
        values = _values(tensor)
        if (side := adapter.get(tensor_name(name, "A"))) is not None:
            product: Floats = _values(adapter[tensor_name(name, "B")]) @ _values(side)
            values += scale * product
        yield name, values


def _values(tensor: StoredTensor) -> Floats:
    values = to_floats(tensor.read(), tensor.dtype)
    if values is None:
        raise BadInputError(str(tensor.file), f"weights of type {tensor.dtype}", "BF16, F16 or F32")
    return values.reshape(tensor.shape)
