"""Reads headers of safetensors files, and writes bfloat16 files, for which numpy has no type."""

import json
import math
import os
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_WEIGHTS, open_regular, read_regular, reason
from stages.models.json_file import shown
from stages.processes.cgroups import usable_cores

ITEM_BYTES = {
    "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
    "BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8,
}  # fmt: skip
"""Bytes per number, by type name of the format."""
SIZE_FILE = "weights.size"
"""File in a folder that has only config and tokenizer so far. It holds the size of the missing weights in bytes."""
_MAX_FILE_BYTES = 2**48
_REMEDY = "copy or download the file again"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file.

    Attributes:
        file: The file.
        dtype: Type name of the format.
        shape: Sizes of the tensor.
        span: Start and end in the file, in bytes.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    span: tuple[int, int]

    def read(self, first: int = 0, end: int = _MAX_FILE_BYTES) -> bytes:
        """Returns the bytes of the numbers from `first` to `end` of the flat tensor; without arguments, of all."""
        start, stop = (self.span[0] + number * ITEM_BYTES[self.dtype] for number in (first, end))
        with open_regular(self.file, LARGEST_WEIGHTS) as file:
            file.seek(start)
            return file.read(min(stop, self.span[1]) - start)


def to_floats(content: bytes, dtype: str) -> NDArray[np.float32] | None:
    """Returns a tensor's bytes in a file as flat float32 values; None if its type is not BF16, F16 or F32."""
    match dtype:
        case "BF16":
            return (np.frombuffer(content, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "F16" | "F32":
            return np.frombuffer(content, "<f2" if dtype == "F16" else "<f4").astype(np.float32)
        case _:
            return None


def to_bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds finite float32 values to the nearest bfloat16 (ties to even) and returns their bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def write_floats(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    tensors: Iterable[tuple[str, NDArray[np.float32]]],
    dtype: str = "BF16",
) -> None:
    """Writes float32 tensors as a safetensors file of bfloat16 or float16, in the order of their names.

    The next tensors are made while the last ones are rounded and written by other threads.

    Args:
        path: The file.
        shapes: Shape of each tensor by name.
        tensors: Names and tensors, in any order.
        dtype: `BF16` or `F16`; values must be in its range.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in sorted(shapes):
        span = [offset, offset + math.prod(shapes[name]) * ITEM_BYTES[dtype]]
        header[name] = {"dtype": dtype, "shape": list(shapes[name]), "data_offsets": span}
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    threads = usable_cores()
    with path.open("wb") as file, ThreadPoolExecutor(threads) as pool:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(size := file.tell() + offset)
        file.flush()

        def write(name: str, tensor: NDArray[np.float32]) -> None:
            stored = to_bfloat16_bits(tensor).astype("<u2", copy=False) if dtype == "BF16" else tensor.astype("<f2")
            content = stored.reshape(-1).data.cast("B")
            end = header[name]["data_offsets"][1]
            if list(tensor.shape) != header[name]["shape"]:
                raise ValueError(f"{name} has the shape {tensor.shape}, not {header[name]['shape']}")
            while content:
                content = content[os.pwrite(file.fileno(), content, size - offset + end - len(content)) :]

        missing, writing = set(shapes), deque[Future[None]]()
        for name, tensor in tensors:
            missing.remove(name)
            writing.append(pool.submit(write, name, tensor))
            if len(writing) > threads:  # each holds a tensor
                writing.popleft().result()
        for future in writing:
            future.result()
    if missing:
        raise ValueError(f"no tensor {min(missing)}")


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file by name, in the order of the file; the library checks that it is whole.

    Raises:
        BadInputError: The file cannot be read, or is no complete safetensors file.
    """
    try:
        with open_regular(path, LARGEST_WEIGHTS) as file:
            end = 8 + int.from_bytes(file.read(8), "little")
        tensors: dict[str, StoredTensor] = {}
        with cast("Any", safe_open)(path, "numpy") as opened:
            for name in opened.offset_keys():  # nothing is between them
                entry = opened.get_slice(name)
                dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
                if dtype not in ITEM_BYTES:
                    where = f"{path}: tensor {shown(name)}"
                    raise BadInputError(where, f"dtype {dtype}", f"one of {', '.join(ITEM_BYTES)}", "convert the model")
                start, end = end, end + math.prod(shape) * ITEM_BYTES[dtype]
                tensors[name] = StoredTensor(path, dtype, shape, (start, end))
        return tensors
    except OSError as error:
        raise BadInputError(str(path), reason(error), "a safetensors file", _REMEDY) from error
    except SafetensorError as error:
        cause = shown(str(error).removeprefix("Error while deserializing header: "))
        problem = f"not a complete safetensors file ({cause})"
        raise BadInputError(str(path), problem, "a complete safetensors file", _REMEDY) from error


def weight_bytes(folder: Path) -> int:
    """Returns the total size of a folder's safetensors files, or of those that it will have (see `SIZE_FILE`)."""
    if (expected := folder / SIZE_FILE).is_file():
        return int(read_regular(expected))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
