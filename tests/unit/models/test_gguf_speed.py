"""What makes the conversion of a GGUF file fast changes nothing of what is read."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import modeling_gguf_pytorch_utils as reading

from stages.models import convert

WORDS = ["", "a", "the murderer", "Ġhall", "é", "\n"] * 40


def written(path: Path) -> Path:
    """Writes a GGUF file with every kind of value."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", path.stem)
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", WORDS)
    writer.add_array("tokenizer.ggml.token_type", list(range(len(WORDS))))
    writer.add_tensor("weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the child process that converts; undone after the test."""
    for module, name in (
        (gguf, "GGUFReader"), (gguf, "get_tensor_name_map"), (gguf.quants, "_apply_over_grouped_rows"),
        (reading, "_gguf_parse_value"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, getattr(module, name))
    convert.speed_up_gguf()


def values(reader: Any, parse: Any) -> dict[str, list[Any]]:
    return {
        name: [parse(field.parts[index], field.types) for index in field.data] for name, field in reader.fields.items()
    }


def test_fields_and_tensors_are_those_that_gguf_reads(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = written(tmp_path / "model.gguf")
    slow = gguf.GGUFReader(file)
    expected = values(slow, reading._gguf_parse_value)
    request.getfixturevalue("fast")
    reader = gguf.GGUFReader(file)
    for _ in range(2):  # from the file, and as it was parsed before
        assert values(reader, reading._gguf_parse_value) == expected
    assert expected["tokenizer.ggml.tokens"] == WORDS
    assert gguf.GGUFReader(file) is reader
    assert [tensor.data.tolist() for tensor in reader.tensors] == [tensor.data.tolist() for tensor in slow.tensors]


def test_the_next_file_is_not_taken_for_one_that_is_gone(tmp_path: Path, fast: None) -> None:
    """The memory of a reader that is gone may become that of another one."""
    for number in range(20):
        convert.speed_up_gguf()
        file = written(tmp_path / f"{number}.gguf")
        assert values(gguf.GGUFReader(file), reading._gguf_parse_value)["general.name"] == [str(number)]


@pytest.mark.parametrize("rows", [1, 16, 255, 256, 257, 1000])
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0], ids=str)
def test_weights_are_dequantized_equally(rows: int, kind: Any, request: pytest.FixtureRequest) -> None:
    weights = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    stored = gguf.quants.quantize(weights, kind)
    expected = gguf.quants.dequantize(stored, kind)
    request.getfixturevalue("fast")
    np.testing.assert_array_equal(gguf.quants.dequantize(stored, kind), expected)
    np.testing.assert_array_equal(gguf.quants.dequantize(stored[None], kind), expected[None])
