"""Mistral: all layers slide if there is a window, as in its first release."""

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    window = None if config.stated("sliding_window") is None else config.count("sliding_window")
    return shape.with_sliding_layers(window, range(shape.layers))


FAMILY = Family("mistral", "MistralForCausalLM", _describe, {"sliding_window": 4096})
