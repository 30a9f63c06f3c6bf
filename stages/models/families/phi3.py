"""Phi-3 and Phi-4-mini: fused projections, partial rotation, and LongRoPE within the original context.

Beyond the original context, all frequencies change. vLLM then uses them for short sequences too, and transformers does
not, so no trainer could match both.
"""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.rope import LongRopeScaling
from stages.models.shape import DecoderShape, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    if isinstance(shape.rope.scaling, LongRopeScaling):
        original = min(shape.max_positions, config.count("original_max_position_embeddings"))
        shape = replace(shape, max_positions=original)
    window = None if config.stated("sliding_window") is None else config.count("sliding_window")
    return replace(shape, fused=True).with_sliding_layers(window, range(shape.layers))


FAMILY = Family(
    "phi3",
    "Phi3ForCausalLM",
    _describe,
    {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    rotates_partly=True,
)
