"""OLMo 3: OLMo 2 with sliding layers, all but every fourth; only the others have scaled rotary positions."""

from stages.models.families.olmo2 import describe_olmo2
from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family, read_rope


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    return describe_olmo2(shape, config).with_sliding_layers(
        config.count("sliding_window"),
        config.sliding_layers(shape.layers, 4),
        read_rope(config, shape.head_dim, "sliding_attention"),
    )


FAMILY = Family(
    "olmo3", "Olmo3ForCausalLM", _describe, {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096}
)
