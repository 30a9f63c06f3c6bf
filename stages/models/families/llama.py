"""Llama 2 and 3, SmolLM and SmolLM2: a plain decoder with optional biases."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    bias = config.switch("attention_bias")
    return replace(shape, qkv_bias=bias, output_bias=bias, mlp_bias=config.switch("mlp_bias"))


FAMILY = Family("llama", "LlamaForCausalLM", _describe)
