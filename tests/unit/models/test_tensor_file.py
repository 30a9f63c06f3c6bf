"""bfloat16 by hand: rounding worked out on paper, files that torch reads, damage that is noticed."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from stages.models.tensor_file import read_header, to_bfloat16_bits, to_floats, write_floats


def test_rounding_worked_by_hand() -> None:
    # bfloat16 keeps 7 fraction bits, so around 1 the step is 1/128; halves go to the even neighbour.
    values = np.array([1.0, 1 + 1 / 256, 1 + 3 / 256, -2.0, 0.0], dtype=np.float32)
    assert to_bfloat16_bits(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC000, 0x0000]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100, min_value=-(2.0**100)))
def test_rounding_error_is_at_most_half_a_step(value: float) -> None:
    bits = to_bfloat16_bits(np.array([value], dtype=np.float32)).astype(np.uint32) << np.uint32(16)
    rounded = float(bits.view(np.float32)[0])
    assert math.isclose(rounded, value, rel_tol=1 / 256, abs_tol=1e-40)


def test_a_written_file_reads_back_with_the_safetensors_library(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "model.safetensors"
    tensors = [("b", np.zeros((3,), np.float32)), ("a", np.arange(6, dtype=np.float32).reshape(2, 3))]
    write_floats(path, {name: tensor.shape for name, tensor in tensors}, tensors)
    with safe_open(path, framework="pt") as file:  # pyright: ignore[reportUnknownVariableType]
        assert set(file.keys()) == {"a", "b"}  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        assert file.get_tensor("a").float().tolist() == [[0, 1, 2], [3, 4, 5]]  # pyright: ignore
    stored = read_header(path)["a"]
    assert (stored.dtype, stored.shape, stored.span[1] - stored.span[0]) == ("BF16", (2, 3), 12)
    floats = [to_floats(content, "BF16") for content in (stored.read(), stored.read(1, 3))]
    assert [values.tolist() for values in floats if values is not None] == [[0, 1, 2, 3, 4, 5], [1, 2]]


@pytest.mark.parametrize("keep_bytes", [-1, 5, 40, 0])
def test_a_truncated_file_is_named(tmp_path: Path, keep_bytes: int) -> None:
    path = tmp_path / "model.safetensors"
    write_floats(path, {"a": (4, 4)}, [("a", np.ones((4, 4), np.float32))])
    path.write_bytes(path.read_bytes()[:keep_bytes])
    with pytest.raises(BadInputError, match=r"model\.safetensors: not a complete safetensors file"):
        read_header(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        read_header(tmp_path / "absent.safetensors")
    with pytest.raises(BadInputError, match=r"cannot be read \(Is a directory\)"):
        read_header(tmp_path)


A = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
B = {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}


def with_header(path: Path, text: bytes, data_bytes: int = 8) -> Path:
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data_bytes))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": {**B, "data_offsets": [2, 6]}}, "invalid offset for tensor `b`"),
        ({"b": {**B, "data_offsets": [0, 4]}}, "invalid offset for tensor"),
        ({"b": {**B, "data_offsets": [6, 10]}}, "invalid offset for tensor `b`"),
        ({"b": {**B, "data_offsets": [-4, 0]}}, "integer `-4`"),
        ({"b": {**B, "data_offsets": [8, 4]}}, "invalid offset for tensor `b`"),
        ({"b": {**B, "data_offsets": [4, 8, 12]}}, "invalid length 3"),
        ({"b": {**B, "data_offsets": [4.0, 8.0]}}, "floating point `4.0`"),
        ({"b": {**B, "data_offsets": [4, 10**4000]}}, "number out of range"),
        ({"b": {**B, "data_offsets": {"begin": 4}}}, "invalid type: map"),
        ({"b": {**B, "shape": [3]}}, "invalid shape, data type, or offset"),
        ({"b": {**B, "shape": [-2]}}, "integer `-2`"),
        ({"b": {**B, "shape": [True, 2]}}, "boolean `true`"),
        ({"b": {**B, "shape": [2**40, 2**40]}}, "overflow"),
        ({"b": {**B, "shape": "2"}}, 'string "2"'),
        ({"b": {**B, "dtype": "BF17"}}, "unknown variant `BF17`"),
        (
            {"b": {**B, "dtype": "F6_E2M3", "shape": [16], "data_offsets": [4, 16]}},
            "'b': dtype F6_E2M3; expected one of BF16",
        ),
        ({"b": {**B, "dtype": ["BF16"]}}, "invalid JSON in header"),
        ({"b": 7}, "integer `7`"),
        ({"b": {**B, "shape": [float("inf")]}}, "invalid JSON in header"),
        ({"b": {**B, "data_offsets": [4, 6]}}, "invalid shape, data type, or offset"),
    ],
)
def test_a_table_that_breaks_a_rule_of_the_format_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = with_header(tmp_path / "model.safetensors", json.dumps({"a": A, "b": B, **changes}).encode(), 16)
    with pytest.raises(BadInputError, match=message) as refusal:
        read_header(path)
    assert len(str(refusal.value)) < 600 + len(str(path))


@pytest.mark.parametrize(
    "text",
    [
        b"{nonsense",
        b"[1]     ",
        b'{"a": {}}',
        b'{"a":' + b"[" * 100_000,
        b'{"a": ' + json.dumps(A).encode() + b', "a": ' + json.dumps(B).encode() + b"}",
        b'{"a": {"dtype": "BF16", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
        '{"a": {}}'.encode("utf-16"),
        b"\xff\xfe",
    ],
    ids=["no JSON", "no table", "no tensor", "nested", "twice", "5000 digits", "utf-16", "no text"],
)
def test_a_header_that_is_no_table_of_tensors_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(BadInputError, match="not a complete safetensors file"):
        read_header(with_header(tmp_path / "model.safetensors", text))


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10_000_001, 4096])
def test_a_header_of_a_wrong_length_is_not_read(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(BadInputError, match="not a complete safetensors file"):
        read_header(path)


def test_tensors_without_numbers_take_no_room(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 3], "data_offsets": [4, 4]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": A, "e": empty, "b": B}).encode()
    assert read_header(with_header(tmp_path / "model.safetensors", header)).keys() == {"a", "e", "b"}
