"""Gemma 3, the text model: norms on both sides, sliding layers with their own rotary positions, a gate with GELU."""

from dataclasses import replace

from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Family, LayerNorms, read_rope

_NORMS = LayerNorms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    config.refuse(
        hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=None, attn_logit_softcapping=None,
        use_bidirectional_attention=False,
    )  # fmt: skip
    bias = config.switch("attention_bias")
    shape = replace(
        shape,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        norms=_NORMS,
        offset_norms=True,
        activation="gelu_pytorch_tanh",
        embedding_scale=shape.embed_dim**0.5,
        attention_scale=config.number("query_pre_attn_scalar") ** -0.5,
    )
    return shape.with_sliding_layers(
        config.count("sliding_window"),
        config.sliding_layers(shape.layers, config.count("sliding_window_pattern", 6)),
        read_rope(config, shape.head_dim, "sliding_attention", theta_key="rope_local_base_freq"),
    )


FAMILY = Family(
    "gemma3_text", "Gemma3ForCausalLM", _describe,
    {
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131_072, "tie_word_embeddings": True, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    },
    part_of="gemma3",
)  # fmt: skip
