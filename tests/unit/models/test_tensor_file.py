"""bfloat16 by hand: rounding worked out on paper, files that torch reads, damage that is noticed."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from stages.models.tensor_file import read_header, to_bfloat16_bits, write_bfloat16


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
    write_bfloat16(path, {"b": np.zeros((3,), np.float32), "a": np.arange(6, dtype=np.float32).reshape(2, 3)})
    with safe_open(path, framework="pt") as file:  # pyright: ignore[reportUnknownVariableType]
        assert set(file.keys()) == {"a", "b"}  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        assert file.get_tensor("a").float().tolist() == [[0, 1, 2], [3, 4, 5]]  # pyright: ignore
    assert read_header(path)["a"] == {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


@pytest.mark.parametrize(
    ("keep_bytes", "found"), [(-1, "truncated"), (5, "not a whole"), (40, "not a whole"), (0, "not a whole")]
)
def test_a_truncated_file_is_named(tmp_path: Path, keep_bytes: int, found: str) -> None:
    path = tmp_path / "model.safetensors"
    write_bfloat16(path, {"a": np.ones((4, 4), np.float32)})
    path.write_bytes(path.read_bytes()[:keep_bytes])
    with pytest.raises(BadInputError, match=found):
        read_header(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"cannot be read \(No such file or directory\)"):
        read_header(tmp_path / "absent.safetensors")
    with pytest.raises(BadInputError, match=r"cannot be read \(Is a directory\)"):
        read_header(tmp_path)


@pytest.mark.parametrize("text", [b"{nonsense", b"[1]     ", b'{"a": {}}'])
def test_a_header_that_is_no_table_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(BadInputError, match=r"header|tensor"):
        read_header(path)
