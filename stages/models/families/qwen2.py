"""Qwen2 and Qwen2.5: query, key and value have a bias."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    return replace(shape, qkv_bias=True)


FAMILY = Family("qwen2", "Qwen2ForCausalLM", _describe)
