"""Qwen3 with experts: a router chooses some feed-forward networks for each token, in every layer."""

from dataclasses import replace

from stages.models.families.qwen3 import describe_qwen3
from stages.models.json_file import ConfigFile
from stages.models.shape import DecoderShape, Experts, Family


def _describe(shape: DecoderShape, config: ConfigFile) -> DecoderShape:
    config.refuse(decoder_sparse_step=1)
    if config.stated("mlp_only_layers"):
        raise config.refusal("mlp_only_layers", config.stated("mlp_only_layers"), "no layers without experts")
    key = "num_experts" if "num_experts" in config.written else "num_local_experts"  # transformers 4, 5
    count = config.count(key)
    experts = Experts(count, config.count("num_experts_per_tok", most=count), config.switch("norm_topk_prob"))
    return replace(describe_qwen3(shape, config), experts=experts, hidden_dim=config.count("moe_intermediate_size"))


FAMILY = Family("qwen3_moe", "Qwen3MoeForCausalLM", _describe)
