"""Families of models: what their config.json may leave out, and the text model inside one that reads pictures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from artifacts.errors import BadInputError
from flows.config.model_size import shape_of_config
from stages.models.convert import convert_folder
from stages.models.folder import check_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.rope import LongRopeScaling, YarnScaling
from stages.models.shape import describe, families, read_shape
from stages.models.source import check_source
from stages.models.spellings import both_in_config
from stages.training.model.rotation import rotation_factor, rotation_frequencies
from stages.training.trainable import TrainableConfig
from tests.support.policies import ARCHITECTURES
from tests.support.trees import save_model

CONFIG = Path("config.json")
# From the published config.json of each model, without what no reader of ours looks at.
PUBLISHED: dict[str, dict[str, Any]] = {
    "mistralai/Mistral-7B-Instruct-v0.1": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
    },
    "microsoft/Phi-4-mini-instruct": {
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
        "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
    },
    "Qwen/Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "google/gemma-3-1b-it": {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "head_dim": 256,
        "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000, "rope_theta": 1000000, "rope_scaling": None,
        "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144,
        "hidden_activation": "gelu_pytorch_tanh", "final_logit_softcapping": None, "attn_logit_softcapping": None,
    },
    "google/gemma-3-4b-it": {
        "model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
    },
}  # fmt: skip


def test_published_models_have_the_sizes_that_their_cards_state() -> None:
    sizes = {name: shape_of_config(config) for name, config in PUBLISHED.items()}
    billions = {name.split("/")[1]: round(size.parameters / 1e9, 2) for name, size in sizes.items()}
    assert billions == {
        "Mistral-7B-Instruct-v0.1": 7.24, "Phi-4-mini-instruct": 3.84, "gemma-3-1b-it": 1.0, "gemma-3-4b-it": 3.88,
        "Qwen3-30B-A3B": 30.53,
    }  # fmt: skip
    moe = sizes["Qwen/Qwen3-30B-A3B"]
    assert (moe.layers * moe.computed + 2 * moe.head) / 1e9 == pytest.approx(3.35, abs=0.01), "A3B"
    gemma, phi = sizes["google/gemma-3-4b-it"], sizes["microsoft/Phi-4-mini-instruct"]
    assert (gemma.heads, gemma.sliding_layers, gemma.window, gemma.positions) == ((8, 4), 29, 1024, 131_072)
    assert (phi.positions, phi.divisible, phi.sliding_layers) == (4096, False, 0)
    assert sizes["mistralai/Mistral-7B-Instruct-v0.1"].sliding_layers == 32
    with pytest.raises(BadInputError, match=r"model_type: 'llava'; expected one of gemma3_text"):
        describe(CONFIG, {"model_type": "llava", "text_config": {"model_type": "llama"}})
    local = describe(CONFIG, PUBLISHED["google/gemma-3-1b-it"])
    assert local.sliding_rope is not None and (local.rope.theta, local.sliding_rope.theta) == (1e6, 1e4)


@pytest.mark.parametrize("model", sorted(ARCHITECTURES))
def test_both_spellings_state_the_shape_that_transformers_saved(model: str, tmp_path: Path) -> None:
    architecture, changes = ARCHITECTURES[model]
    save_model(tmp_path, architecture, **changes)
    saved = json.loads((tmp_path / "config.json").read_text())
    both = both_in_config(saved)
    assert both_in_config(both) == both
    assert describe(CONFIG, both) == describe(CONFIG, saved)
    old = {key: value for key, value in both.items() if key != "rope_parameters"}
    if model != "olmo3-yarn":  # in transformers 4, one base serves both kinds of its layers
        assert describe(CONFIG, old) == describe(CONFIG, saved)
    first, second = (transformers.AutoConfig.for_model(**config).rope_parameters for config in (both, saved))
    first.pop("type", None)  # the spelling of transformers 4 beside `rope_type`
    assert first == second


@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        ("gemma3", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping: 30\.0; expected null"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True; expected false"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation: 'gelu'; expected 'gelu_pytorch_tanh'"),
        ("gemma3", {"layer_types": ["sliding_attention"]}, "layer_types: .*; expected 2 times full_attention or slid"),
        ("smollm3", {"no_rope_layers": [0, 2]}, "no_rope_layers: .0, 2.; expected 2 times 0 .no rotation. or 1"),
        ("olmo3", {"sliding_window": 0}, "sliding_window: 0; expected a whole number from 1"),
        ("granite", {"logits_scaling": 0}, "logits_scaling: 0; expected a finite number above 0"),
        ("phi4-mini", {"partial_rotary_factor": 0.72, "rope_parameters": None}, r"factor: 0\.72; expected an even"),
        ("qwen3-moe", {"mlp_only_layers": [0]}, "mlp_only_layers: .0.; expected no layers without experts"),
        ("qwen3-moe", {"num_experts_per_tok": 6}, "num_experts_per_tok: 6; expected a whole number from 1 to 5"),
        ("qwen3-yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, r"mscale: 0\.7; exp"),
    ],
)  # fmt: skip
def test_a_config_that_needs_another_computation_is_refused(
    model: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    architecture, changes = ARCHITECTURES[model]
    save_model(tmp_path, architecture, **changes)
    with pytest.raises(BadInputError, match=message):
        describe(CONFIG, {**json.loads((tmp_path / "config.json").read_text()), **change})


def test_adapters_are_of_maps_that_the_model_has() -> None:
    plain, phi, moe = (
        describe(CONFIG, PUBLISHED[name])
        for name in ("google/gemma-3-1b-it", "microsoft/Phi-4-mini-instruct", "Qwen/Qwen3-30B-A3B")
    )
    every = TrainableConfig(parameters="lora", merge=True)
    query = every.model_copy(update={"projections": ("q_proj",)})
    attention = ["attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj"]
    assert every.adapted(plain) == [*attention, "mlp.w1", "mlp.w3", "mlp.w2"]
    assert every.adapted(phi) == ["attn.qkv_proj", "attn.output_proj", "mlp.w1", "mlp.w2"]
    assert query.adapted(moe) == ["attn.q_proj"]
    with pytest.raises(BadInputError, match=r"merge: false for a model with one matrix for query, key and value"):
        TrainableConfig(parameters="lora").adapted(phi)
    with pytest.raises(BadInputError, match=r"merge: false for a model with experts; expected true: engines do not"):
        TrainableConfig(parameters="lora").adapted(moe)
    with pytest.raises(BadInputError, match=r"q_proj without k_proj, v_proj; expected all of q_proj, k_proj, v_proj"):
        query.adapted(phi)
    with pytest.raises(BadInputError, match=r"gate_proj; expected .*: experts have no adapters"):
        every.adapted(moe)


def test_every_family_is_a_file_and_is_tried() -> None:
    folder = Path(describe.__code__.co_filename).with_name("families")
    assert len(families()) == len(list(folder.glob("[!_]*.py")))
    tried = {getattr(transformers, f"{architecture}Config").model_type for architecture, _ in ARCHITECTURES.values()}
    assert tried == set(families())


@pytest.mark.parametrize("model", ["qwen3-yarn", "phi4-mini", "gemma3-linear", "llama3"])
def test_frequencies_and_factor_are_those_of_transformers(model: str, tmp_path: Path) -> None:
    architecture, changes = ARCHITECTURES[model]
    save_model(tmp_path, architecture, **changes)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    shape, layers = read_shape(tmp_path), "full_attention" if model.startswith("gemma3") else None
    kind = (config.rope_parameters[layers] if layers else config.rope_parameters)["rope_type"]
    function = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    frequencies, factor = function(config, torch.device("cpu"), layer_type=layers)
    torch.testing.assert_close(rotation_frequencies(shape.rope), frequencies, atol=0, rtol=1e-6)
    assert rotation_factor(shape.rope) == pytest.approx(factor)
    assert factor == 1.0 or isinstance(shape.rope.scaling, YarnScaling | LongRopeScaling)


def test_the_text_model_of_one_that_reads_pictures_is_taken(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    make_scratch(ScratchModel(vocabulary=300), ["Who was it?"], source)
    vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]
    text = {
        "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 5, "pad_token_id": None,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
        "patch_size": 14,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(0)
    transformers.Gemma3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(source)
    check_source(source)
    out.mkdir()
    convert_folder(source, out)
    check_folder(out)
    assert read_shape(out).family == "gemma3_text" and shape_of_config(json.loads((source / "config.json").read_text()))
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        expected, logits = (
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
            for folder in (source, out)
        )
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=0)
