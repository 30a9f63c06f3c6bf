"""SmolLM3: some layers have no rotary positions (NoPE), by default every fourth."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    bias, rotated = config.switch("attention_bias"), config.stated("no_rope_layers")
    if rotated is None:
        every = config.count("no_rope_layer_interval", 4)
        rotated = [int((layer + 1) % every != 0) for layer in range(shape.layers)]
    if not isinstance(rotated, list) or len(rotated) < shape.layers or any(one not in (0, 1) for one in rotated):
        raise config.refusal("no_rope_layers", rotated, f"{shape.layers} times 0 (no rotation) or 1")
    return replace(
        shape,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.switch("mlp_bias"),
        unrotated_layers=tuple(layer for layer in range(shape.layers) if not rotated[layer]),
    )


FAMILY = Family("smollm3", "SmolLM3ForCausalLM", _describe, {"tie_word_embeddings": True, "rope_theta": 2e6})
