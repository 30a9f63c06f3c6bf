"""Granite 3: a Llama with constant factors of embeddings, residual sums, attention and logits."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    bias = config.switch("attention_bias")
    return replace(
        shape,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.switch("mlp_bias"),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        logit_divisor=config.number("logits_scaling", 1.0),
    )


FAMILY = Family("granite", "GraniteForCausalLM", _describe)
