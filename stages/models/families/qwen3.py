"""Qwen3: query and key heads are normalized."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family


def describe_qwen3(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    """Returns the shape of a Qwen3."""
    bias = config.switch("attention_bias")
    return replace(shape, qkv_bias=bias, output_bias=bias, qk_norm="head")


FAMILY = Family("qwen3", "Qwen3ForCausalLM", describe_qwen3)
