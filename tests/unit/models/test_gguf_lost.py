"""What transformers would leave out of a GGUF file without a word is refused."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import modeling_gguf_pytorch_utils as reading

from artifacts.errors import BadInputError
from stages.models.convert import refuse_lost_settings, unread_tensors_refused
from stages.models.source import GgufPackageModel, find_packaged_file

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64}
EXPERTS = {"num_experts": 2, "moe_intermediate_size": 16, "head_dim": 8, "num_key_value_heads": 4}
LAYER = ("attn_k", "attn_norm", "attn_output", "attn_q", "attn_v", "ffn_norm")
DENSE, SPARSE = ("ffn_down", "ffn_gate", "ffn_up"), ("ffn_down_exps", "ffn_gate_exps", "ffn_gate_inp", "ffn_up_exps")
NORMS = ("attn_q_norm", "attn_k_norm")
OF_LLAMA = ["token_embd.weight", "output_norm.weight", *(f"blk.0.{name}.weight" for name in (*LAYER, *DENSE))]
OF_QWEN3_MOE = [*OF_LLAMA[:2], *(f"blk.0.{name}.weight" for name in (*LAYER, *NORMS, *SPARSE))]


def written(path: Path, architecture: str, tensors: list[str], **settings: Any) -> gguf.GGUFReader:
    """Writes a file with four heads of eight dimensions; `__` stands for a dot in the names of settings."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    for name, value in settings.items():
        key = f"{architecture}.{name.replace('__', '.')}"
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(key, value)
    for name in tensors:
        writer.add_tensor(name, np.zeros(4, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return gguf.GGUFReader(path)


@pytest.mark.parametrize(
    ("architecture", "settings", "lost"),
    [
        ("llama", {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}, r"rope\.scaling\.type linear"),
        ("qwen2", {"rope__scaling__type": "yarn"}, r"rope\.scaling\.type yarn"),
        ("llama", {"rope__scaling__factor": 4.0}, r"rope\.scaling\.factor 4\.0"),
        ("phi3", {"rope__dimension_count": 6}, r"rope\.dimension_count 6"),
        ("gemma3", {"rope__dimension_count": 8, "attention__key_length": 16}, r"rope\.dimension_count 8"),
        ("phi3", {"attention__sliding_window": 2047}, r"attention\.sliding_window 2047"),
        ("llama", {"rope__dimension_count": 8, "rope__scaling__type": "none", "rope__scaling__factor": 1.0}, None),
        ("qwen3", {"rope__dimension_count": 16, "attention__key_length": 16}, None),
        ("gemma3", {"attention__sliding_window": 512}, None),
    ],
)
def test_settings_that_would_be_lost_are_refused(
    tmp_path: Path, architecture: str, settings: dict[str, Any], lost: str | None
) -> None:
    file = tmp_path / "x.gguf"
    reader = written(file, architecture, ["token_embd.weight"], **settings)
    if lost is None:
        refuse_lost_settings(file, reader)
        return
    with pytest.raises(BadInputError, match=rf"x\.gguf: {lost}; expected only what transformers reads") as raised:
        refuse_lost_settings(file, reader)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("family", "sizes", "tensors", "lost"),
    [
        ("Llama", {}, OF_LLAMA, None),
        ("Llama", {}, [*OF_LLAMA, "rope_freqs.weight"], "rope_freqs.weight"),
        ("Llama", {}, [*OF_LLAMA, "blk.0.attn_q.bias"], "blk.0.attn_q.bias"),
        ("Llama", {}, [*OF_LLAMA, "blk.1.attn_q.weight"], "blk.1.attn_q.weight"),
        ("Qwen3Moe", EXPERTS, OF_QWEN3_MOE, None),
        ("Qwen3Moe", EXPERTS, [*OF_QWEN3_MOE, "blk.0.exp_probs_b.bias"], "blk.0.exp_probs_b.bias"),
    ],
)
def test_tensors_that_would_be_lost_are_refused(
    tmp_path: Path, family: str, sizes: dict[str, Any], tensors: list[str], lost: str | None
) -> None:
    file = tmp_path / "x.gguf"
    config = getattr(transformers, f"{family}Config")(**SIZES, **sizes)
    processor = reading.TENSOR_PROCESSORS["qwen3moe" if sizes else "llama"](config=config.to_dict())
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    plain = reading.get_gguf_hf_weights_map(model, processor)
    with unread_tensors_refused(file, written(file, "llama", tensors)):
        if lost is None:
            assert reading.get_gguf_hf_weights_map(model, processor) == plain
            return
        with pytest.raises(BadInputError, match=rf"x\.gguf: tensor {lost}; expected only what transformers reads"):
            reading.get_gguf_hf_weights_map(model, processor)


def test_the_packaged_model_loses_nothing() -> None:
    installed = GgufPackageModel()
    file = find_packaged_file(installed.package, installed.file)
    refuse_lost_settings(file, gguf.GGUFReader(file))
