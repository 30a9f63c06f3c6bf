"""Reading and writing the safetensors layout where numpy has no type for it: bfloat16."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import BadInputError

_MAX_HEADER_BYTES = 100_000_000


def to_bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds finite float32 values to the nearest bfloat16 (ties to even) and returns their bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def write_bfloat16(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Writes float32 tensors as a safetensors file of bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blocks: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        block = to_bfloat16_bits(tensors[name]).astype("<u2").tobytes()
        span = [offset, offset + len(block)]
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": span}
        blocks.append(block)
        offset += len(block)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        file.writelines(blocks)


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Reads the table of contents of a safetensors file and checks that the file is whole.

    Returns:
        For each tensor its ``dtype``, ``shape`` and ``data_offsets``.

    Raises:
        BadInputError: The file cannot be read, is not safetensors, or shorter or longer than its table says.
    """
    remedy = "copy or download the file again"
    try:
        size_bytes, opened = path.stat().st_size, path.open("rb")
    except OSError as error:
        raise BadInputError(str(path), f"cannot be read ({error.strerror})", "a safetensors file", remedy) from error
    with opened as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
        if length > min(_MAX_HEADER_BYTES, size_bytes - 8):
            raise BadInputError(str(path), "not a whole safetensors file", "a header of the stated length", remedy)
        text = file.read(length)
    try:
        parsed: object = json.loads(text)
    except ValueError as error:
        raise BadInputError(str(path), "a header that is not JSON", "a safetensors file", remedy) from error
    if not isinstance(parsed, dict):
        raise BadInputError(str(path), "a header that is not a table", "a safetensors file", remedy)
    header = cast("dict[str, dict[str, Any]]", parsed)
    header.pop("__metadata__", None)
    try:
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInputError(str(path), "a tensor without a place in the file", "a safetensors file", remedy) from error
    expected_bytes = 8 + length + end
    if size_bytes != expected_bytes:
        kind = "truncated" if size_bytes < expected_bytes else "too long"
        raise BadInputError(str(path), f"{kind}: {size_bytes} bytes", f"{expected_bytes} bytes", remedy)
    return header
