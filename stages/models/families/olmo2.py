"""OLMo 2: norms after attention and feed-forward network instead of before, and of all query and key heads together."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family, LayerNorms


def describe_olmo2(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    """Returns the shape of an OLMo 2."""
    bias = config.switch("attention_bias")
    norms = LayerNorms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
    return replace(shape, qkv_bias=bias, output_bias=bias, qk_norm="projection", norms=norms)


FAMILY = Family("olmo2", "Olmo2ForCausalLM", describe_olmo2, {"rms_norm_eps": 1e-5})
